//! The inside of a guest: muster as its first process. It mounts what a program expects, runs the job as natively, says
//! on the second serial line what came out, a line of JSON a message, and switches the machine off.

use crate::SuiteError;
use crate::platform::{Finished, Job, Native, Platform};
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, reboot, uname};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// The file that says what is to be done.
pub const REQUEST: &str = "/muster-request.json";
/// The line on which messages go out.
const LINE: &str = "/dev/ttyS1";

/// What a guest is to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The job; nothing but booting, when absent.
    pub job: Option<Job>,
}

/// What a guest says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// It has booted.
    Ready {
        /// The release of its kernel.
        kernel: String,
    },
    /// The job ended well.
    Finished(Finished),
    /// It did not.
    Failed {
        /// How it ended, in words.
        how: String,
        /// The last lines of its standard error.
        tail: String,
    },
}

/// The messages in what came over the line so far; a line that is not complete is not there yet.
pub fn messages(text: &str) -> Vec<Message> {
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    complete.lines().filter_map(|line| serde_json::from_str(line.trim()).ok()).collect()
}

/// The body of a guest's first process. Where it is not that, it touches nothing.
///
/// # Errors
/// When this is no guest of `muster vsuite`, or one in which nothing works.
pub fn run_guest() -> Result<(), SuiteError> {
    if std::process::id() != 1 || !Path::new(REQUEST).exists() {
        let allowed = "only as the first process of a virtual machine that `muster vsuite --vm` starts";
        return Err(SuiteError::bad_input("vsuite-guest", "a machine of yours", allowed));
    }
    let failed = SuiteError::system::<io::Error>;
    mount_all().map_err(failed("cannot mount /proc and /sys"))?;
    let mut line = File::options().write(true).open(LINE).map_err(failed("cannot open the line to the host"))?;
    let native = Native::new()?;
    let kernel = uname().release().to_string_lossy().into_owned();
    let mut say = |message: &Message| say(&mut line, message).map_err(failed("cannot speak to the host"));
    say(&Message::Ready { kernel })?;
    let request = fs::read(REQUEST).and_then(|text| serde_json::from_slice(&text).map_err(io::Error::from));
    let request: Request = request.map_err(failed("cannot read what is to be done"))?;
    if let Some(job) = request.job {
        say(&outcome(&native, &job))?;
    }
    drop(line);
    reboot(RebootCommand::PowerOff).map_err(SuiteError::system("cannot switch the machine off"))
}

fn mount_all() -> io::Result<()> {
    for (kind, place) in [("proc", "/proc"), ("sysfs", "/sys")] {
        mount(kind, place, kind, MountFlags::NOSUID, None)?;
    }
    Ok(())
}

fn outcome(native: &Native, job: &Job) -> Message {
    if native.cores() != job.cores {
        let how = format!("had {} CPUs instead of {}", native.cores(), job.cores);
        return Message::Failed { how, tail: String::new() };
    }
    match native.run(job) {
        Ok(finished) => Message::Finished(finished),
        Err(SuiteError::RunFailed { how, tail, .. }) => Message::Failed { how, tail },
        Err(other) => Message::Failed { how: format!("failed: {other}"), tail: String::new() },
    }
}

fn say(line: &mut File, message: &Message) -> io::Result<()> {
    let mut text = serde_json::to_vec(message)?;
    text.push(b'\n');
    line.write_all(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_come() {
        let finished = Finished {
            stdout: "00ff\n".to_owned(),
            product: None,
            wall_ns: 5,
            user_ns: 3,
            kernel_ns: 1,
            peak_memory_bytes: 4096,
        };
        let ready = Message::Ready { kernel: "6.1.0-1-cloud-amd64".to_owned() };
        let sent = [ready, Message::Finished(finished)];
        let text: Vec<String> = sent.iter().map(|message| serde_json::to_string(message).unwrap() + "\r\n").collect();
        let text = text.concat();
        assert_eq!(messages(&text), sent);
        assert_eq!(messages(&text[..text.len() - 1]), sent[..1], "a line without its end");
        assert_eq!(messages(""), []);
        assert_eq!(messages("noise\r\n"), []);
    }

    #[test]
    fn a_job_survives_the_way_into_a_guest() {
        use std::os::unix::ffi::OsStringExt;
        let odd = std::ffi::OsString::from_vec(vec![b'a', 0xff]);
        let job = Job { argv: vec!["make".into(), odd], cores: 3, ..Job::default() };
        let request = Request { job: Some(job) };
        let text = serde_json::to_vec(&request).unwrap();
        assert_eq!(serde_json::from_slice::<Request>(&text).unwrap(), request);
    }

    #[test]
    fn a_machine_that_is_no_guest_is_left_alone() {
        let message = run_guest().unwrap_err().to_string();
        assert!(message.starts_with("vsuite-guest: found a machine of yours; allowed: only as the first"), "{message}");
    }

    #[test]
    fn a_job_on_other_cpus_than_asked_for_fails() {
        let native = Native::new().unwrap();
        let job = Job { cores: native.cores() + 1, argv: vec!["true".into()], ..Job::default() };
        let Message::Failed { how, .. } = outcome(&native, &job) else { panic!("it cannot run") };
        assert!(how.contains("CPUs instead of"), "{how}");
    }
}
