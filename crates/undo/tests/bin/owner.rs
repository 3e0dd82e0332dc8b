//! Stands in for muster in the tests of this crate: an owner of a journal that can be killed at any moment, its
//! guardian, and programs to be changed.
//!
//! `own DIR RUN` obeys lines on standard input (`guard`, `record JSON`,
//! `write FILE VALUE`, `restore`) and answers each with one line;
//! `early DIR` starts the guardian, and makes its journal at the first line;
//! `guard --journal FILE` is the guardian; `sleep THREADS PROCESSES` is a program of sleeping threads;
//! `daemon` leaves its parent and clears its environment.

use muster_undo::{Change, Directory, Journal, guardian, new_run_id};
use std::error::Error;
use std::io::{BufRead, stdin};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["own", directory, run] => own(Path::new(directory), run),
        ["early", directory] => early(Path::new(directory)),
        ["guard", "--journal", file] => Ok(guardian::watch(Path::new(file)).map(|_report| ())?),
        ["sleep", threads, processes] => sleep(threads.parse()?, processes.parse()?),
        ["daemon"] => daemon(),
        _ => Err("usage: see the first lines of the source".into()),
    }
}

fn own(directory: &Path, run: &str) -> Result<(), Box<dyn Error>> {
    let journal = Journal::create(Directory::at(directory)?, run)?;
    let directory = Directory::at(directory)?;
    println!("ready");
    for line in stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("guard", _) => println!("{}", guardian::spawn(&directory, run)?.pid()),
            ("record", json) => {
                let change: Change = serde_json::from_str(json)?;
                match journal.record(&change) {
                    Ok(id) => println!("{}", serde_json::to_string(&id)?),
                    Err(error) => println!("error: {error}"),
                }
            }
            ("write", rest) => {
                let (file, value) = rest.rsplit_once(' ').ok_or("a file and a value are needed")?;
                println!("{}", serde_json::to_string(&journal.write_file(Path::new(file), value)?)?);
            }
            ("restore", _) => println!("{}", serde_json::to_string(&journal.restore())?),
            _ => return Err(format!("unknown command `{line}`").into()),
        }
    }
    Ok(())
}

fn early(directory: &Path) -> Result<(), Box<dyn Error>> {
    let (directory, run) = (Directory::at(directory)?, new_run_id()?);
    println!("{}", guardian::spawn(&directory, &run)?.pid());
    stdin().read_line(&mut String::new())?;
    let _journal = Journal::create(directory, &run)?;
    println!("ready");
    stdin().read_line(&mut String::new())?;
    Ok(())
}

/// Ends with its standard input, which the children share.
fn sleep(threads: usize, processes: usize) -> Result<(), Box<dyn Error>> {
    for _ in 1..threads {
        std::thread::spawn(|| std::thread::sleep(Duration::from_secs(3600)));
    }
    for _ in 0..processes {
        let mut child = Command::new("/proc/self/exe");
        // Dropping the handle leaves the child running.
        let _child = child.args(["sleep", &threads.to_string(), "0"]).stdout(Stdio::null()).spawn()?;
    }
    println!("ready");
    stdin().read_line(&mut String::new())?;
    Ok(())
}

/// Starts a sleeper in a session of its own, without environment, and leaves it an orphan; says its number.
fn daemon() -> Result<(), Box<dyn Error>> {
    let mut child = Command::new("/proc/self/exe");
    child.args(["sleep", "4", "0"]).env_clear().stdout(Stdio::null());
    // SAFETY: setsid(2) is async-signal-safe, and nothing is allocated.
    unsafe { child.pre_exec(|| rustix::process::setsid().map(|_| ()).map_err(Into::into)) };
    println!("{}", child.spawn()?.id());
    Ok(())
}
