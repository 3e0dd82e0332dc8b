// Both models on SimGrid's S4U: one actor a server, joined by semaphores; one actor a client and one that answers it,
// the client waiting with a timeout. Semaphores and sleeps are what S4U has that costs least: its mailboxes simulate a
// network as well, its executions a processor. Prints time, work and checksum as JSON.

#include <simgrid/s4u.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

namespace sg4 = simgrid::s4u;

constexpr int SERVERS = 64, TOKENS = 32, CLIENTS = 10'000, TIMEOUT = 1'000;
static uint64_t work = 0, checksum = 0;

struct Server {
  sg4::SemaphorePtr arrivals = sg4::Semaphore::create(0);
  std::deque<uint64_t> waiting;
};

static void arrive(Server& server, uint64_t token)
{
  server.waiting.push_back(token);
  server.arrivals->release();
}

static void serve(std::vector<Server>& ring, int number)
{
  Server& self = ring[number];
  Server& next = ring[(number + 1) % SERVERS];
  while (true) {
    self.arrivals->acquire();
    uint64_t token = self.waiting.front();
    self.waiting.pop_front();
    sg4::this_actor::sleep_for(1);
    work++;
    checksum += number;
    if (token > 1)
      arrive(next, token - 1);
  }
}

static void start_ring(sg4::Host* host, std::vector<Server>& ring, uint64_t hops)
{
  for (int i = 0; i < SERVERS; i += SERVERS / TOKENS) {
    ring[i].waiting.push_back(hops);
    ring[i].arrivals->release();
  }
  for (int i = 0; i < SERVERS; i++)
    sg4::Actor::create("server", host, [&ring, i] { serve(ring, i); })->daemonize();
  // Daemons end with the last actor that is none.
  sg4::Actor::create("clock", host, [hops] { sg4::this_actor::sleep_for(hops + 0.5); });
}

struct Line {
  sg4::SemaphorePtr request = sg4::Semaphore::create(0), answer = sg4::Semaphore::create(0);
  uint64_t after = 0;
};

static void answer(Line& line)
{
  while (true) {
    line.request->acquire();
    sg4::this_actor::sleep_for(line.after);
    line.answer->release();
  }
}

static void ask(Line& line, uint64_t number, uint64_t requests)
{
  for (uint64_t request = 0; request < requests; request++) {
    uint64_t draw = request * 7919 + number * 104729;
    if (draw / 100 % 100 != 0) {
      line.after = 1 + draw % 100;
      line.request->release();
    }
    line.answer->acquire_timeout(TIMEOUT);
    work++;
  }
  checksum += static_cast<uint64_t>(sg4::Engine::get_clock() + 0.5);
}

static void start_timers(sg4::Host* host, std::vector<Line>& lines, uint64_t requests)
{
  for (int i = 0; i < CLIENTS; i++) {
    sg4::Actor::create("answerer", host, [&lines, i] { answer(lines[i]); })->daemonize();
    sg4::Actor::create("client", host, [&lines, i, requests] { ask(lines[i], i, requests); });
  }
}

int main(int argc, char* argv[])
{
  sg4::Engine engine(&argc, argv);
  if (argc != 3 || (std::strcmp(argv[1], "ring") && std::strcmp(argv[1], "timers"))) {
    std::fprintf(stderr, "usage: %s ring|timers SIZE\n", argv[0]);
    return 2;
  }
  sg4::NetZone* zone = sg4::create_full_zone("world");
  sg4::Host* host = zone->create_host("host", 1e9);
  zone->seal();
  uint64_t size = std::strtoull(argv[2], nullptr, 10);
  std::vector<Server> ring(SERVERS);
  std::vector<Line> lines(std::strcmp(argv[1], "timers") ? 0 : CLIENTS);
  if (lines.empty())
    start_ring(host, ring, size);
  else
    start_timers(host, lines, size);
  auto start = std::chrono::steady_clock::now();
  engine.run();
  std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("{\"seconds\": %.6f, \"work\": %lu, \"checksum\": %lu}\n", seconds.count(), work, checksum);
  return 0;
}
