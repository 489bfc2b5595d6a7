"""A federation in this process: Flower's grid, with devices that answer at once, or as a test wants them to."""

from types import SimpleNamespace

from flwr.app import Error, MessageType
from flwr.supercore.task_identity import TaskIdentity

from fedprox import data
from fedprox.deploy.client import Device, introduction
from fedprox.deploy.device_data import DeviceData
from fedprox.deploy.engine import GRADIENT
from fedprox.deploy.messages import Instruction, ModelQuery


class Clock:
    """A clock that moves only when somebody sleeps."""

    def __init__(self):
        self.time = 0.0

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.time += seconds


class FakeGrid:
    """Node 100 + k is device k. `behave(device, asked, answer)` may change an answer, or return None to stay silent."""

    def __init__(self, config, population=None, behave=None, delays=None, model=None, solver=None, folder=None):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as in a server's process
        population = population or data.load(config)
        model = model or data.model_for(config, population)
        self.devices = {
            100 + k: Device(config, model, DeviceData.of(population, k), solver, folder=folder)
            for k in range(population.devices)
        }
        self.data = {100 + k: DeviceData.of(population, k) for k in range(population.devices)}
        self.model, self.delays, self.clock = model, delays or {}, Clock()
        self.behave = behave or (lambda device, asked, answer: answer)
        self.online = set(self.devices)
        self.replies, self.sent = {}, []

    def get_node_ids(self):
        return sorted(self.online)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            identity = f"message-{len(self.sent)}"
            self.sent.append(message)
            ids.append(identity)
            answer = self._answer(message)
            if answer is not None:
                due = self.clock.now() + self.delays.get((message.metadata.dst_node_id, message.metadata.group_id), 0.0)
                self.replies[identity] = (due, answer)
        return ids

    def pull_messages(self, ids):
        ready = [i for i in ids if i in self.replies and self.replies[i][0] <= self.clock.now()]
        return [self._reply(i, self.replies.pop(i)[1]) for i in ready]

    def _answer(self, message):
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        if kind == MessageType.QUERY:
            asked, answer = None, introduction(self.data[node])
        elif kind == GRADIENT:
            asked = ModelQuery.from_records(message.content, self.devices[node].like)
            answer = self.devices[node].gradient(asked)
        elif kind == MessageType.EVALUATE:
            asked = ModelQuery.from_records(message.content, self.devices[node].like)
            answer = self.devices[node].evaluate(asked)
        else:
            asked = Instruction.from_records(message.content, self.devices[node].like)
            answer = self.devices[node].work(asked)
        answer = self.behave(node - 100, asked, answer)
        return answer.to_records() if hasattr(answer, "to_records") else answer

    def _reply(self, identity, answer):
        is_error = isinstance(answer, Error)
        return SimpleNamespace(
            metadata=SimpleNamespace(reply_to_message_id=identity),
            has_content=lambda: not is_error,
            content=answer,
            error=answer,
        )
