//! Both models on the simulator's own engine.

use engine_bench::{CLIENTS, Done, SERVERS, TIMEOUT, TOKENS, answer_after};
use muster_sim::engine::Ps;
use muster_sim::engine::queue::{Queue, Slot};
use std::collections::VecDeque;

fn main() {
    engine_bench::main(ring, timers);
}

/// Serves one token at a time, in order of arrival. A token is the number of hops it has left.
#[derive(Default)]
struct Server {
    in_service: Option<u64>,
    waiting: VecDeque<u64>,
    served: u64,
}

/// Each server is a slot: the end of its service.
fn ring(hops: u64) -> impl FnOnce() -> Done {
    let mut queue = Queue::new(SERVERS);
    let mut servers: Vec<Server> = (0..SERVERS).map(|_| Server::default()).collect();
    for server in (0..SERVERS).step_by(SERVERS / TOKENS) {
        servers[server].in_service = Some(hops);
        queue.schedule(server as Slot, 1);
    }
    move || {
        while let Some((now, slot)) = queue.pop() {
            let server = &mut servers[slot as usize];
            let token = server.in_service.take().expect("a service ends that has begun");
            server.served += 1;
            if let Some(next) = server.waiting.pop_front() {
                server.in_service = Some(next);
                queue.schedule(slot, now + 1);
            }
            if token > 1 {
                let next = (slot as usize + 1) % SERVERS;
                arrive(&mut servers[next], token - 1, || queue.schedule(next as Slot, now + 1));
            }
        }
        let checksum = servers.iter().zip(0..).map(|(server, number)| number * server.served).sum();
        Done { work: servers.iter().map(|server| server.served).sum(), checksum }
    }
}

fn arrive(server: &mut Server, token: u64, begin: impl FnOnce()) {
    if server.in_service.is_some() {
        server.waiting.push_back(token);
    } else {
        server.in_service = Some(token);
        begin();
    }
}

#[derive(Clone, Copy, Default)]
struct Client {
    requests: u64,
}

const ANSWER: Slot = 0;
const EXPIRY: Slot = 1;

/// Each client has two slots: its answer and its timeout.
fn timers(requests: u64) -> impl FnOnce() -> Done {
    let mut queue = Queue::new(2 * CLIENTS as usize);
    let mut clients = vec![Client::default(); CLIENTS as usize];
    for number in 0..CLIENTS {
        request(&mut queue, number, 0, 0);
    }
    move || {
        let (mut work, mut checksum) = (0, 0);
        while let Some((now, slot)) = queue.pop() {
            let number = u64::from(slot / 2);
            let client = &mut clients[number as usize];
            if slot % 2 == ANSWER {
                queue.cancel(2 * (slot / 2) + EXPIRY);
            }
            client.requests += 1;
            work += 1;
            if client.requests < requests {
                request(&mut queue, number, client.requests, now);
            } else {
                checksum += now;
            }
        }
        Done { work, checksum }
    }
}

fn request(queue: &mut Queue, client: u64, request: u64, now: Ps) {
    let slot = 2 * client as Slot;
    queue.schedule(slot + EXPIRY, now + TIMEOUT);
    if let Some(after) = answer_after(client, request) {
        queue.schedule(slot + ANSWER, now + after);
    }
}
