//! What both programs share: the two models' parameters, and the line that each program prints.

use std::time::Instant;

/// Servers in the ring.
pub const SERVERS: usize = 64;
/// Tokens in the ring, at every second server in the beginning.
pub const TOKENS: usize = 32;
/// Clients of the timer model.
pub const CLIENTS: u64 = 10_000;
/// How long a client waits for its answer, in time units.
pub const TIMEOUT: u64 = 1_000;

/// After how many time units client `client` gets the answer to its request `request`; `None` when the answer is lost,
/// as one in a hundred is.
#[inline]
pub fn answer_after(client: u64, request: u64) -> Option<u64> {
    let draw = request * 7_919 + client * 104_729;
    (draw / 100 % 100 != 0).then_some(1 + draw % 100)
}

/// What a run did; equal for all simulators.
pub struct Done {
    /// Hops or requests.
    pub work: u64,
    /// Ring: the sum of server number times tokens served. Timers: the sum of the clients' finishing times.
    pub checksum: u64,
}

/// Runs the model that the command line names, as large as it says, and prints time, work and checksum as JSON.
/// Each model is a function from its size to what is to be timed.
pub fn main<R: FnOnce() -> Done, T: FnOnce() -> Done>(ring: fn(u64) -> R, timers: fn(u64) -> T) {
    let arguments: Vec<String> = std::env::args().collect();
    let size = arguments.get(2).and_then(|size| size.parse().ok());
    let (start, done) = match (arguments.get(1).map(String::as_str), size) {
        (Some("ring"), Some(hops)) => time(ring(hops)),
        (Some("timers"), Some(requests)) => time(timers(requests)),
        _ => {
            eprintln!("usage: {} ring|timers SIZE", arguments[0]);
            std::process::exit(2);
        }
    };
    println!(r#"{{"seconds": {}, "work": {}, "checksum": {}}}"#, start, done.work, done.checksum);
}

fn time(run: impl FnOnce() -> Done) -> (f64, Done) {
    let start = Instant::now();
    let done = run();
    (start.elapsed().as_secs_f64(), done)
}
