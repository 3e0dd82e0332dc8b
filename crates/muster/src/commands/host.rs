//! `muster host`: what a KVM host offers its guests, and what to set on it.

mod ple;

use crate::BadInput;
use clap::{Subcommand, ValueEnum};
use muster_host::apply::{Made, Plan};
use muster_host::{Error, Tree};
use muster_model::CpuSet;
use muster_policy::host::asked::Asked;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

/// Audit a KVM host, and set what its guests gain by.
#[derive(clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Audit(AuditArgs),
    Apply(ApplyArgs),
    Undo(UndoArgs),
    Ple(ple::Args),
}

/// Where the host is looked at.
#[derive(clap::Args)]
struct Place {
    /// Read and write below DIR instead of /: a recorded tree of sysfs and procfs.
    #[arg(long, value_name = "DIR", default_value = "/")]
    sysroot: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Place {
    fn tree(&self) -> Result<Tree, BadInput> {
        Tree::at(&self.sysroot).map_err(|error| BadInput(format!("--sysroot {error}")))
    }
}

/// Say what could be better on this host, and why; changes nothing.
#[derive(clap::Args)]
struct AuditArgs {
    #[command(flatten)]
    place: Place,
}

/// Set what the audit finds to act on, or what is named.
///
/// Without KNOB and values: whatever the audit marks ACT. All of it is set, or nothing; it stays until `muster host
/// undo`, `muster undo` or a reboot.
#[derive(clap::Args)]
struct ApplyArgs {
    /// Set what these have to offer, also what the audit only says is to consider.
    #[arg(value_enum, value_name = "KNOB")]
    knobs: Vec<Knob>,
    /// Set NAME to VALUE: a parameter of KVM such as `ple_window`, `thp`, `clocksource`, ...; any number of times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_set)]
    set: Vec<Asked>,
    /// Make N virtual functions of DEV (a PCI address or network interface), without a driver of the host.
    #[arg(long, value_name = "DEV=N", value_parser = parse_functions)]
    vfs: Vec<Asked>,
    /// Bind a virtual function, or all those of DEV, to vfio-pci or another driver.
    #[arg(long, value_name = "DEV[=DRIVER]", value_parser = parse_bind)]
    bind: Vec<Asked>,
    /// Give a virtual function, or all those of DEV, back to the host.
    #[arg(long, value_name = "DEV", value_parser = parse_release)]
    release: Vec<Asked>,
    /// Send interrupt N to these CPUs.
    #[arg(long, value_name = "N=CPUS", value_parser = parse_interrupt)]
    irq: Vec<Asked>,
    /// Only say what would be written.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    place: Place,
}

/// Put back what `muster host apply` has set.
#[derive(clap::Args)]
struct UndoArgs {
    /// Only say what would be put back.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    place: Place,
}

/// What `apply` takes.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Knob {
    /// EPT or NPT.
    Paging,
    /// Transparent huge pages.
    LargePages,
    /// Pause-loop exits.
    Ple,
    /// Halt polling in the host.
    HaltPoll,
    /// The host's clock source.
    Clock,
    /// Virtual functions: made, then bound to vfio-pci.
    SrIov,
    /// Interrupts of a device spread over CPUs.
    Interrupts,
}

impl From<Knob> for muster_model::host::Knob {
    fn from(knob: Knob) -> Self {
        match knob {
            Knob::Paging => Self::Paging,
            Knob::LargePages => Self::LargePages,
            Knob::Ple => Self::Ple,
            Knob::HaltPoll => Self::HaltPoll,
            Knob::Clock => Self::Clock,
            Knob::SrIov => Self::SrIov,
            Knob::Interrupts => Self::Interrupts,
        }
    }
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Audit(args) => audit(&args),
        Command::Apply(args) => apply(args),
        Command::Undo(args) => undo(&args),
        Command::Ple(args) => ple::run(&args),
    }
}

fn audit(args: &AuditArgs) -> anyhow::Result<ExitCode> {
    let audit = muster_host::audit(&args.place.tree()?);
    match args.place.json {
        true => println!("{}", serde_json::to_string_pretty(&audit)?),
        false => print!("{}", muster_report::table::host_audit(&audit)),
    }
    Ok(ExitCode::SUCCESS)
}

fn apply(args: ApplyArgs) -> anyhow::Result<ExitCode> {
    let tree = args.place.tree()?;
    let knobs: Vec<_> = args.knobs.into_iter().map(Into::into).collect();
    // What makes virtual functions comes before what binds them.
    let values: Vec<Asked> = [args.set, args.release, args.vfs, args.bind, args.irq].concat();
    let plan = muster_host::plan(&tree, &knobs, &values).map_err(refuse)?;
    let made = match args.dry_run {
        true => muster_host::apply::preview(&tree, &plan),
        false => match muster_host::apply::carry_out(&tree, &plan) {
            Ok(made) => made,
            Err(error) => match error.signal() {
                Some(signal) => return Ok(ended(&error, signal)),
                None => return Err(refuse(error)),
            },
        },
    };
    match args.place.json {
        true => {
            let Plan { already, cannot, notes, .. } = &plan;
            let object = serde_json::json!({
                "dry_run": args.dry_run, "made": made, "already": already, "cannot": cannot, "notes": notes
            });
            println!("{}", serde_json::to_string_pretty(&object)?);
        }
        false => print!("{}", told(&plan, &made, args.dry_run)),
    }
    Ok(ExitCode::SUCCESS)
}

/// What was done, a line a change.
fn told(plan: &Plan, made: &[Made], dry_run: bool) -> String {
    let did = if dry_run { "would set" } else { "set" };
    let mut text: String = made
        .iter()
        .map(|Made { what, before, after }| format!("{did:<13} {what} = {after} (was {before})\n"))
        .collect();
    text.extend(plan.already.iter().map(|what| format!("{:<13} {what}\n", "already")));
    text.extend(plan.cannot.iter().map(|why| format!("{:<13} {why}\n", "cannot")));
    text.extend(plan.notes.iter().map(|note| format!("{:<13} {note}\n", "note")));
    if made.is_empty() {
        text.push_str("nothing to set\n");
    } else if !dry_run {
        text.push_str("it stays until `muster host undo` or a reboot\n");
    }
    text
}

fn undo(args: &UndoArgs) -> anyhow::Result<ExitCode> {
    let reports = muster_host::undo(&args.place.tree()?, args.dry_run)?;
    super::undo::finish(&reports, args.dry_run, args.place.json)
}

/// Requests that cannot be met here, and missing privileges, are the user's to mend.
fn refuse(error: Error) -> anyhow::Error {
    match error {
        Error::Request(_) | Error::NotPermitted { .. } => BadInput(error.to_string()).into(),
        other => other.into(),
    }
}

/// The exit code of a program that a signal ended.
fn ended(error: &Error, signal: i32) -> ExitCode {
    eprintln!("muster: {error}");
    ExitCode::from(128 + signal as u8)
}

/// `A=B`, both of them there.
fn halves<'a>(text: &'a str, form: &str) -> Result<(&'a str, &'a str), String> {
    let halves = text.split_once('=').filter(|(name, value)| !name.is_empty() && !value.is_empty());
    halves.ok_or_else(|| format!("{form} is expected"))
}

fn parse_set(text: &str) -> Result<Asked, String> {
    let (name, value) = halves(text, "NAME=VALUE")?;
    Ok(Asked::Set { name: name.to_owned(), value: value.to_owned() })
}

fn parse_functions(text: &str) -> Result<Asked, String> {
    let (device, count) = halves(text, "DEV=N")?;
    let count = u64::from_str(count).map_err(|_| "DEV=N with a number N is expected".to_owned())?;
    Ok(Asked::Functions { device: device.to_owned(), count })
}

fn parse_bind(text: &str) -> Result<Asked, String> {
    let (device, driver) = text.split_once('=').unwrap_or((text, "vfio-pci"));
    Ok(Asked::Bind { device: device.to_owned(), driver: driver.to_owned() })
}

fn parse_release(text: &str) -> Result<Asked, String> {
    Ok(Asked::Release { device: text.to_owned() })
}

fn parse_interrupt(text: &str) -> Result<Asked, String> {
    let (number, cpus) = halves(text, "N=CPUS")?;
    let number = u32::from_str(number).map_err(|_| "N=CPUS with a number N is expected".to_owned())?;
    let cpus = cpus.parse::<CpuSet>().map_err(|error| error.to_string())?;
    Ok(Asked::Interrupt { number, cpus })
}
