"""What crosses between a stub and an executor: messages, the wire, shared memory."""
