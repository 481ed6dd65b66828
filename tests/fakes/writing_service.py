"""A service that writes: token i of a text is i, one per step, and `kill` in a prompt is deadly."""

from ge_backend.errors import InvalidRequest
from ge_backend.executor.protocol.messages import Ok
from ge_backend.executor.server.queue import Job
from ge_backend.executor.server.services import GRAPH, SERVICES
from ge_text.protocol import (
    Abort,
    Delta,
    Parts,
    RequestFailed,
    StatsReply,
    StatsRequest,
    Submit,
    TokenUpdates,
    parts_of,
)

KINDS = {"generation": "fakes.writing_service:WritingService", GRAPH: SERVICES[GRAPH]}


class WritingService:
    """`parameters` is how many tokens; those of a prompt that says `hold` wait for `go`."""

    made = None

    def __init__(self, context, opened):
        self.context, self.parts = context, {}
        self.submitted, self.withdrawn, self.held = [], [], []
        self.kill = lambda: None
        self.hold_after = 10**9
        WritingService.made = self

    def join(self, client):
        self.parts[client] = Parts()
        return WritingMember(self, client)

    def receive(self, client, body):
        message = self.parts[client].take(body)
        if isinstance(message, Submit):
            self.submitted.append(message)
            self.begin(client, message)
        elif isinstance(message, Abort):
            self.withdrawn.append(message.number)
        elif isinstance(message, StatsRequest):
            self.say(client, StatsReply(counts={"steps": 1}))

    def begin(self, client, asked):
        if "wrong" in asked.text:
            error = InvalidRequest("this is wrong")
            self.say(
                client,
                RequestFailed(number=asked.number, error="InvalidRequest", message=str(error)),
            )
        elif "kill" in asked.text:
            self.kill()
        else:
            done = len(asked.samples[0].ids) if asked.samples else 0
            self.step(client, asked, done)

    def step(self, client, asked, done):
        def work(grant):
            last = done + 1 == int(asked.parameters)
            delta = Delta(
                number=asked.number,
                sample=0,
                text=str(done),
                ids=(done,),
                finish="length" if last else "",
            )
            self.say(client, TokenUpdates(deltas=(delta,)))
            if last:
                return lambda: None
            if "hold" in asked.text and done + 1 == self.hold_after:
                return lambda: self.held.append((client, asked, done + 1))
            return lambda: self.step(client, asked, done + 1)

        self.context.lanes.submit(Job(work=work, owner=client))

    def go(self):
        held, self.held = self.held, []
        for client, asked, done in held:
            self.step(client, asked, done)

    def say(self, client, message):
        for part in parts_of(message):
            client.post(part)

    def leave(self, client):
        self.context.lanes.cancel(client)

    def close(self):
        pass


class WritingMember:
    """A client's part, which the service itself does."""

    def __init__(self, service, client):
        self.service, self.client = service, client
        self.answer = Ok(id=client.opened.id)

    def receive(self, post):
        self.service.receive(self.client, post.body)

    def leave(self):
        self.service.leave(self.client)
