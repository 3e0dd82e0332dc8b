"""Both models on SimPy, after its documentation: a ring of server processes joined by stores, and clients that wait for
an answer or a timeout, whichever comes first. Prints time, work and checksum as JSON."""

import json
import sys
import time

import simpy

SERVERS, TOKENS = 64, 32
CLIENTS, TIMEOUT = 10_000, 1_000


def ring(hops):
    env = simpy.Environment()
    stores = [simpy.Store(env) for _ in range(SERVERS)]
    served = [0] * SERVERS

    def server(number, arrivals, following):
        while True:
            token = yield arrivals.get()
            yield env.timeout(1)
            served[number] += 1
            if token > 1:
                following.put(token - 1)

    for number in range(SERVERS):
        env.process(server(number, stores[number], stores[(number + 1) % SERVERS]))
    for number in range(0, SERVERS, SERVERS // TOKENS):
        stores[number].put(hops)
    seconds = run(env)
    return seconds, sum(served), sum(number * count for number, count in enumerate(served))


def timers(requests):
    env = simpy.Environment()
    finished = []

    def client(number):
        for request in range(requests):
            draw = request * 7_919 + number * 104_729
            expiry = env.timeout(TIMEOUT)
            if draw // 100 % 100:
                yield env.timeout(1 + draw % 100) | expiry
            else:
                yield expiry
        finished.append(env.now)

    for number in range(CLIENTS):
        env.process(client(number))
    seconds = run(env)
    return seconds, CLIENTS * requests, sum(finished)


def run(env):
    start = time.perf_counter()
    env.run()
    return time.perf_counter() - start


if __name__ == "__main__":
    seconds, work, checksum = {"ring": ring, "timers": timers}[sys.argv[1]](int(sys.argv[2]))
    print(json.dumps({"seconds": seconds, "work": work, "checksum": checksum}))
