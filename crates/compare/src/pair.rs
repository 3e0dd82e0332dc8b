//! A server and its load as one program: start the server, wait until it serves, run the load, stop the server.
//!
//! Why this is a program of its own that runs *under* the arm: waking is dear between a client and its server, so a
//! remedy pays only when it covers both (on one vCPU together, one client of Redis runs three times as fast; with the
//! server alone moved, nothing is gained). So the arm's `muster run` gets one command that holds both.
//!
//! Only the load's time is measured: the two snapshots are taken here, around the load, and handed to the comparison
//! through a file, because standard output is the load's.

use crate::error::CompareError;
use crate::launch::{self, ending, tail};
use crate::machine::{Snapshot, become_subreaper};
use regex::Regex;
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, wait};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A server that is not ready after this time never will be.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// A server that has not ended this long after SIGTERM is killed.
const STOP_WITHIN: Duration = Duration::from_secs(5);
const POLL_EVERY: Duration = Duration::from_millis(10);

/// A server, its load, and how to tell that the server is ready.
#[derive(Debug, Clone)]
pub struct Pair {
    /// Shell command of the server; it must stay in the foreground.
    pub server: String,
    /// Shell command of the load; its time and output are what is measured.
    pub load: String,
    /// When to start the load.
    pub ready: Ready,
}

/// When a server is ready.
#[derive(Debug, Clone)]
pub enum Ready {
    /// When a line of its output matches.
    Output(Regex),
    /// When it accepts a TCP connection to this port of the loopback address.
    Port(u16),
}

/// Where a pair reports to.
#[derive(Debug, Clone)]
pub struct Reporting {
    /// File for the [`PairReport`].
    pub report: PathBuf,
    /// File for the server's output.
    pub log: PathBuf,
    /// The comparison: everything below this process belongs to the run.
    pub root: u32,
}

/// What a pair tells its comparison.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PairReport {
    /// The load ran (its exit code is the pair's own).
    Ran {
        /// Just before the load.
        before: Box<Snapshot>,
        /// Just after it.
        after: Box<Snapshot>,
    },
    /// The load was never started.
    NotReady {
        /// Why, with the server's last words.
        why: String,
    },
}

/// Runs a pair and writes its report; the exit code is the load's.
///
/// # Errors
/// When a file or process cannot be made. A server that does not get ready is reported, not an error: exit code 1.
pub fn run(pair: &Pair, to: &Reporting) -> Result<u8, CompareError> {
    become_subreaper()?;
    launch::end_tree_on_signal().map_err(CompareError::system("signal handler"))?;
    let mut server = match Server::start(pair, &to.log) {
        Ok(server) => server,
        Err(why) => return not_ready(to, why),
    };
    if let Err(why) = server.wait_until_ready(&pair.ready) {
        return not_ready(to, why);
    }
    let before = Box::new(Snapshot::before(to.root)?);
    let status = launch::shell(&pair.load).status().map_err(CompareError::system("sh"))?;
    let after = Box::new(Snapshot::after(to.root)?);
    write_report(to, &PairReport::Ran { before, after })?;
    Ok(ending(status).1)
}

fn not_ready(to: &Reporting, why: String) -> Result<u8, CompareError> {
    write_report(to, &PairReport::NotReady { why })?;
    Ok(1)
}

fn write_report(to: &Reporting, report: &PairReport) -> Result<(), CompareError> {
    let json = serde_json::to_vec(report).map_err(|error| CompareError::system("pair report")(error.into()))?;
    fs::write(&to.report, json).map_err(CompareError::system(to.report.display().to_string()))
}

/// A running server; dropping it stops it and all of its process group.
struct Server {
    child: Child,
    log: PathBuf,
}

impl Server {
    fn start(pair: &Pair, log: &Path) -> Result<Self, String> {
        if let Ready::Port(port) = pair.ready
            && accepts(port)
        {
            return Err(format!("port {port} is in use before the server is started: stop what listens there"));
        }
        let output = File::create(log).map_err(|error| format!("{}: {error}", log.display()))?;
        let errors = output.try_clone().map_err(|error| format!("{}: {error}", log.display()))?;
        let mut command = launch::shell(&pair.server);
        // A group of its own, so that a server of several processes is stopped as a whole.
        command.stdout(output).stderr(errors).process_group(0);
        let child = command.spawn().map_err(|error| format!("sh could not be started: {error}"))?;
        Ok(Self { child, log: log.to_owned() })
    }

    fn wait_until_ready(&mut self, ready: &Ready) -> Result<(), String> {
        let until = Instant::now() + READY_WITHIN;
        while Instant::now() < until {
            let output = fs::read(&self.log).unwrap_or_default();
            let output = String::from_utf8_lossy(&output);
            if let Ok(Some(status)) = self.child.try_wait() {
                let (how, _) = ending(status);
                let why =
                    format!("the server {how} before it was ready (it must stay in the foreground)\n{}", tail(&output));
                return Err(why.trim_end().to_owned());
            }
            let is_ready = match ready {
                Ready::Output(regex) => output.lines().any(|line| regex.is_match(line)),
                Ready::Port(port) => accepts(*port),
            };
            if is_ready {
                return Ok(());
            }
            sleep(POLL_EVERY);
        }
        let output = fs::read(&self.log).unwrap_or_default();
        let seconds = READY_WITHIN.as_secs();
        Err(format!("the server was not ready within {seconds} s\n{}", tail(&String::from_utf8_lossy(&output))))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        signal_group(self.child.id(), Signal::TERM);
        if !all_children_end_within(STOP_WITHIN) {
            signal_group(self.child.id(), Signal::KILL);
            // What is still there after this is not of the server's group; the comparison names it.
            all_children_end_within(STOP_WITHIN);
        }
    }
}

/// Waits for the server and, this process being their subreaper, for what its shell may have left.
fn all_children_end_within(time: Duration) -> bool {
    let until = Instant::now() + time;
    while Instant::now() < until {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => sleep(POLL_EVERY),
            Err(_) => return true,
        }
    }
    false
}

fn signal_group(leader: u32, signal: Signal) {
    if let Some(group) = i32::try_from(leader).ok().and_then(Pid::from_raw) {
        // A group that is gone already needs no signal.
        let _ = kill_process_group(group, signal);
    }
}

fn accepts(port: u16) -> bool {
    let addresses = [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))];
    addresses.iter().any(|address| TcpStream::connect_timeout(address, Duration::from_millis(200)).is_ok())
}
