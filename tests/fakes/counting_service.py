"""A service that counts: what a client asks for comes in several posts, by the device's lanes."""

import json
from typing import ClassVar

from ge_backend.errors import GraphFailed, ModelError
from ge_backend.executor.protocol.messages import Ok
from ge_backend.executor.server.queue import Job
from ge_backend.executor.server.services import GRAPH, SERVICES
from ge_backend.executor.server.timeline import RunLabel

KINDS = {
    "counting": "fakes.counting_service:CountingService",
    "none": "fakes.nowhere:Nothing",
    GRAPH: SERVICES[GRAPH],
}


class CountingService:
    """`{"count": 3}` is answered by 1, 2, 3 and "end", a step for each."""

    opened: ClassVar[list] = []

    def __init__(self, context, opened):
        key = opened.key
        if key == "broken":
            raise ModelError("no such model")
        self.context, self.key = context, key
        self.clients, self.left, self.closed = [], [], False
        self.cancelled = set()
        CountingService.opened.append(self)

    def join(self, client):
        if self.key == "unwanted":
            raise ModelError("this client is refused")
        self.clients.append(client)
        return CountingMember(self, client)

    def receive(self, client, body):
        asked = json.loads(body)
        if "fail" in asked:
            raise GraphFailed(asked["fail"])
        if "cancel" in asked:
            self.cancelled.add((client, asked["cancel"]))
            return
        self.step(client, asked["count"], 1, asked.get("as", 0))

    def step(self, client, count, at, number):
        def work(grant):
            self.context.timeline.add(RunLabel(self.key, (1,), 1), grant, grant.came_ns)
            return tell

        def tell():
            client.post(b"%d" % at)
            if (client, number) in self.cancelled:
                client.post(b"cancelled")
            elif at < count and client not in self.left:
                self.step(client, count, at + 1, number)
            else:
                client.post(b"end")

        self.context.lanes.submit(Job(work=work, owner=client))

    def leave(self, client):
        self.left.append(client)
        self.context.lanes.cancel(client)

    def close(self):
        self.closed = True


class CountingMember:
    """A client's part, which the service itself does."""

    def __init__(self, service, client):
        self.service, self.client = service, client
        self.answer = Ok(id=client.opened.id)

    def receive(self, post):
        self.service.receive(self.client, post.body)

    def leave(self):
        self.service.leave(self.client)
