//! Both models on NeXosim, after its documentation: models with inputs, outputs and self-scheduled events, cancelled
//! by key. One thread: with more it is slower on models this fine (`THREADS=2` shows).

use engine_bench::{CLIENTS, Done, SERVERS, TIMEOUT, TOKENS, answer_after};
use nexosim::model::{Context, Model, schedulable};
use nexosim::ports::{EventSource, Output};
use nexosim::simulation::{EventKey, Mailbox, SimInit};
use nexosim::time::MonotonicTime;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One time unit.
const UNIT: Duration = Duration::from_secs(1);
/// What the models have done; added to once by each model's token or client, at its end.
static WORK: AtomicU64 = AtomicU64::new(0);
static CHECKSUM: AtomicU64 = AtomicU64::new(0);

fn main() {
    engine_bench::main(ring, timers);
}

fn bench() -> SimInit {
    SimInit::with_num_threads(std::env::var("THREADS").map_or(1, |threads| threads.parse().expect("THREADS: a number")))
}

fn done() -> Done {
    Done { work: WORK.load(Ordering::Relaxed), checksum: CHECKSUM.load(Ordering::Relaxed) }
}

/// Serves one token at a time, in order of arrival. A token is the number of hops it has left.
#[derive(Default, Serialize, Deserialize)]
struct Server {
    number: u64,
    in_service: Option<u64>,
    waiting: VecDeque<u64>,
    served: u64,
    next: Output<u64>,
}

#[Model]
impl Server {
    fn arrive(&mut self, token: u64, cx: &Context<Self>) {
        if self.in_service.is_some() {
            self.waiting.push_back(token);
        } else {
            self.serve(token, cx);
        }
    }

    fn serve(&mut self, token: u64, cx: &Context<Self>) {
        self.in_service = Some(token);
        cx.schedule_event(UNIT, schedulable!(Self::finish), ()).expect("a time to come");
    }

    #[nexosim(schedulable)]
    async fn finish(&mut self, _: (), cx: &Context<Self>) {
        let token = self.in_service.take().expect("a service ends that has begun");
        self.served += 1;
        if let Some(next) = self.waiting.pop_front() {
            self.serve(next, cx);
        }
        if token > 1 {
            self.next.send(token - 1).await;
        } else {
            WORK.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn report(&mut self) {
        CHECKSUM.fetch_add(self.number * self.served, Ordering::Relaxed);
        WORK.fetch_add(self.served, Ordering::Relaxed);
    }
}

fn ring(hops: u64) -> impl FnOnce() -> Done {
    let mut servers: Vec<Server> = (0..SERVERS as u64).map(|number| Server { number, ..Server::default() }).collect();
    let mailboxes: Vec<Mailbox<Server>> = servers.iter().map(|_| Mailbox::new()).collect();
    let mut bench = bench();
    for (server, mailbox) in servers.iter_mut().zip(mailboxes.iter().cycle().skip(1)) {
        server.next.connect(Server::arrive, mailbox);
    }
    let starts: Vec<_> = (0..SERVERS)
        .step_by(SERVERS / TOKENS)
        .map(|server| EventSource::new().connect(Server::arrive, &mailboxes[server]).register(&mut bench))
        .collect();
    let reports: Vec<_> = mailboxes
        .iter()
        .map(|mailbox| EventSource::new().connect(Server::report, mailbox).register(&mut bench))
        .collect();
    for (server, mailbox) in servers.into_iter().zip(mailboxes) {
        let name = format!("server {}", server.number);
        bench = bench.add_model(server, mailbox, &name);
    }
    let mut simulation = bench.init(MonotonicTime::EPOCH).expect("a sound bench");
    for start in &starts {
        simulation.process_event(start, hops).expect("a token arrives");
    }
    move || {
        simulation.run().expect("the ring turns");
        WORK.store(0, Ordering::Relaxed);
        for report in &reports {
            simulation.process_event(report, ()).expect("a server reports");
        }
        done()
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Client {
    number: u64,
    requests: u64,
    limit: u64,
    expiry: Option<EventKey>,
}

#[Model]
impl Client {
    fn request(&mut self, _: (), cx: &Context<Self>) {
        let expiry = cx.schedule_keyed_event(UNIT * TIMEOUT as u32, schedulable!(Self::expired), ());
        self.expiry = Some(expiry.expect("a time to come"));
        if let Some(after) = answer_after(self.number, self.requests) {
            cx.schedule_event(UNIT * after as u32, schedulable!(Self::answered), ()).expect("a time to come");
        }
    }

    #[nexosim(schedulable)]
    fn answered(&mut self, _: (), cx: &Context<Self>) {
        if let Some(expiry) = self.expiry.take() {
            expiry.cancel();
        }
        self.go_on(cx);
    }

    #[nexosim(schedulable)]
    fn expired(&mut self, _: (), cx: &Context<Self>) {
        self.go_on(cx);
    }

    fn go_on(&mut self, cx: &Context<Self>) {
        self.requests += 1;
        if self.requests < self.limit {
            self.request((), cx);
        } else {
            WORK.fetch_add(self.requests, Ordering::Relaxed);
            CHECKSUM.fetch_add(cx.time().duration_since(MonotonicTime::EPOCH).as_secs(), Ordering::Relaxed);
        }
    }
}

fn timers(limit: u64) -> impl FnOnce() -> Done {
    let mut bench = bench();
    let mut source = EventSource::new();
    for number in 0..CLIENTS {
        let mailbox = Mailbox::new();
        source = source.connect(Client::request, &mailbox);
        bench = bench.add_model(Client { number, limit, ..Client::default() }, mailbox, "client");
    }
    let start = source.register(&mut bench);
    let mut simulation = bench.init(MonotonicTime::EPOCH).expect("a sound bench");
    simulation.process_event(&start, ()).expect("the first requests");
    move || {
        simulation.run().expect("the clients go on");
        done()
    }
}
