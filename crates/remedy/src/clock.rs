//! The guest's clock source: for the time of the run one that is read without leaving the guest (iXen, section 3.1).

use crate::Error;
use muster_observe::machine::{CLOCK_SOURCE, Settings};
use muster_undo::Journal;
use std::path::Path;

/// The clock source to set here; or, in a sentence, why there is none.
pub fn better_source() -> Result<String, String> {
    let settings = Settings::read();
    let (now, offered) = (&settings.clock_source, settings.clock_sources.join(", "));
    if now.is_empty() {
        return Err("the kernel does not name its clock source".to_owned());
    }
    if !settings.clock_leaves_guest() {
        return Err(format!("the clock source is {now} already, which is read without leaving the guest"));
    }
    let better = settings.better_clock_source().ok_or_else(|| {
        format!(
            "the clock source is {now}, and the kernel offers none that is read without leaving the guest: {offered}"
        )
    })?;
    match rustix::fs::access(CLOCK_SOURCE, rustix::fs::Access::WRITE_OK) {
        Ok(()) => Ok(better.to_owned()),
        Err(_) => Err(format!("only root may set the clock source from {now} to {better}: run it with sudo")),
    }
}

/// Sets the clock source of the guest.
pub fn set(journal: &Journal, source: &str) -> Result<(), Error> {
    journal.write_file(Path::new(CLOCK_SOURCE), source)?;
    let now = Settings::read().clock_source;
    if now == source {
        return Ok(());
    }
    // The kernel takes any name, and keeps the source it has if the other one cannot drive its timers.
    let why = format!("the kernel offers {source} and keeps {now}");
    Err(Error::NotPermitted { remedy: "clock", why })
}
