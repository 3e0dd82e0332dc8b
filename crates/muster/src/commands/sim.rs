//! `muster sim`: simulates one experiment and prints its ledger.

mod exits;

use super::import::print_notes;
use super::study::{input_error, print};
use anyhow::Context;
use exits::{ExitReport, WalkReport};
use muster_model::study::{Experiment, VmScheduler};
use muster_model::workload::Group;
use muster_model::{Account, Ledger, ModelError, Profile, Workload, rtapp};
use muster_policy::ple::{self, ExitRate, Setting};
use muster_report::table;
use muster_sim::io::{IoOutcome, Latencies};
use muster_sim::machine::cache::Misses;
use muster_sim::run::VmOutcome;
use muster_sim::timeline::chrome_trace;
use muster_sim::vmm::idle_periods::IdlePeriods;
use muster_sim::vmm::pcpu::Scheduling;
use muster_sim::vmm::ple::Spins;
use muster_sim::working_sets::CacheMisses;
use muster_sim::{Outcome, Simulation};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Simulate one experiment: a machine, an environment, a program and its remedies.
///
/// FILE is TOML; the machine profile and the workload it names are looked for beside it, then in the current
/// directory. The workload may be one for rt-app (`muster import`).
#[derive(clap::Args)]
pub struct Args {
    /// The experiment.
    file: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// Use this seed instead of the experiment's.
    #[arg(long)]
    seed: Option<u64>,
    /// Simulate this workload instead of the experiment's.
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,
    /// Simulate so many cores (vCPUs) instead of the experiment's; a machine that has fewer is scaled out.
    #[arg(long, value_name = "N")]
    vcpus: Option<u32>,
    /// Write every core's timeline to FILE, for Perfetto or chrome://tracing (the first million stretches).
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
}

/// Stretches a timeline keeps.
const TIMELINE_LIMIT: usize = 1_000_000;

#[derive(Serialize)]
struct Report {
    wall_s: f64,
    events: u64,
    idle_transitions_per_s: f64,
    lock_wake_us: f64,
    wakeups: u64,
    ipis: u64,
    exceptions: u64,
    migrations: u64,
    switches: u64,
    tlb_shootdowns: u64,
    exits: BTreeMap<&'static str, ExitReport>,
    /// Where page tables are simulated, walks through them.
    #[serde(skip_serializing_if = "Option::is_none")]
    page_walks: Option<WalkReport>,
    mean_active_cpus: f64,
    deadlocked: bool,
    /// By group of the workload, over all its threads.
    turns: BTreeMap<String, u64>,
    ledger: Ledger,
    /// Where the workload states what it goes through, what caches missed.
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_misses: Option<CacheReport>,
    /// What the program did with devices, where it has some and its VM is not one of `vms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    devices: Option<DeviceReport>,
    /// Where vCPUs share pCPUs, what the scheduler did.
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduling: Option<SchedulingReport>,
    /// For how long pCPUs had nothing to run at a time; absent where they always had.
    #[serde(skip_serializing_if = "Option::is_none")]
    idle_periods: Option<IdleReport>,
    /// Where vCPUs share pCPUs, what each VM got.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    vms: Vec<VmReport>,
    /// With `[ple]`, what was spun for, and what came of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    spinning: Option<SpinReport>,
}

#[derive(Serialize)]
struct SpinReport {
    /// Waits for spin locks of kernels by powers of two: of the n-th, from 0 on, at most 2^n cycles and more than half of that.
    waits_by_power: Vec<u64>,
    exits_by_gap: Vec<ExitRate>,
    /// What `policy::ple` would set; absent where there was too little to choose from.
    #[serde(skip_serializing_if = "Option::is_none")]
    chosen: Option<Setting>,
    /// By VM.
    vms: Vec<VmSpins>,
}

#[derive(Serialize)]
struct VmSpins {
    pause_exits: u64,
    /// Those after which another vCPU ran.
    yields: u64,
    /// Those that gave way to a vCPU of the same VM.
    directed_yields: u64,
    /// On pCPUs, for spin locks.
    spun_s: f64,
}

#[derive(Serialize)]
struct CacheReport {
    l2: BTreeMap<&'static str, MissReport>,
    llc: BTreeMap<&'static str, MissReport>,
}

/// Misses, in lines.
#[derive(Serialize)]
struct MissReport {
    all: u64,
    /// Of lines that another CPU has written.
    coherence: u64,
    /// Of lines that others have displaced.
    conflict: u64,
}

#[derive(Serialize)]
struct SchedulingReport {
    decisions: u64,
    kicks: u64,
    switches: u64,
    preemptions: u64,
    migrations: u64,
}

/// Idle periods of pCPUs, all together.
#[derive(Serialize)]
struct IdleReport {
    count: u64,
    mean_us: f64,
    /// Half of the idle time is in periods that are shorter, to a power of two.
    half_of_time_below_us: f64,
    /// By length, from so many microseconds to twice that.
    lengths: Vec<IdleLengths>,
}

#[derive(Serialize)]
struct IdleLengths {
    from_us: f64,
    count: u64,
    total_s: f64,
}

#[derive(Serialize)]
struct VmReport {
    workload: String,
    /// Until its program ended (the last time, where it repeats itself).
    wall_s: f64,
    runs: u32,
    cpu_s: f64,
    steal_s: f64,
    exits: BTreeMap<&'static str, ExitReport>,
    ledger: Ledger,
    #[serde(skip_serializing_if = "Option::is_none")]
    devices: Option<DeviceReport>,
}

/// What a VM did with networks and disks.
#[derive(Serialize)]
struct DeviceReport {
    received_bytes: u64,
    received_packets: u64,
    sent_bytes: u64,
    sent_packets: u64,
    /// From devices and back ends.
    interrupts: u64,
    /// Events that it sent to the service VM.
    notifications: u64,
    /// Requests of clients that were answered, and how long that took them.
    requests: LatencyReport,
    disk_reads: u64,
    disk_writes: u64,
    disk_bytes: u64,
    disk: LatencyReport,
}

#[derive(Serialize)]
struct LatencyReport {
    count: u64,
    per_s: f64,
    mean_us: f64,
    p95_us: f64,
    p99_us: f64,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let name = args.file.display().to_string();
    let mut experiment = Experiment::from_toml(&read(&args.file, "the experiment")?, &name)?;
    experiment.seed = args.seed.unwrap_or(experiment.seed);
    if let Some(vcpus) = args.vcpus {
        (experiment.cores, experiment.scale_out) = (vcpus, true);
        experiment.validate().map_err(|error| error.within("--vcpus"))?;
    }
    let machine = beside(&args.file, &experiment.machine);
    let profile = Profile::from_toml(&read(&machine, "the machine profile")?, &experiment.machine)?;
    let mut programs = Vec::new();
    for (number, vm) in experiment.all_vms().iter().enumerate() {
        programs.push(match &args.workload {
            Some(file) if number == 0 => workload(file, &file.display().to_string())?,
            _ => workload(&beside(&args.file, &vm.workload), &vm.workload)?,
        });
    }
    let limit = args.timeline.is_some().then_some(TIMELINE_LIMIT);
    let workloads: Vec<&Workload> = programs.iter().collect();
    let outcome = Simulation::of_vms(&experiment, &profile, &workloads, limit)?.run().map_err(input_error)?;
    if let Some(file) = &args.timeline {
        std::fs::write(file, chrome_trace(&outcome.timeline, outcome.cores))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let report = report(&experiment, &outcome, turns(&programs[0], &experiment, &outcome));
    print(&if args.json { serde_json::to_string_pretty(&report)? } else { page(&report) })
}

/// A file that the experiment names: relative to the experiment, else to the current directory.
fn beside(experiment: &Path, named: &str) -> PathBuf {
    let near = experiment.parent().unwrap_or(Path::new("")).join(named);
    if near.exists() { near } else { PathBuf::from(named) }
}

/// A workload in our own language, or for rt-app.
fn workload(path: &Path, name: &str) -> Result<Workload, ModelError> {
    let text = read(path, "the workload")?;
    if !rtapp::is_rtapp(&text) {
        return Workload::from_json(&text, name);
    }
    let imported = rtapp::import(&text, name, &rtapp::Options::default())?;
    print_notes(&imported.notes);
    Ok(imported.workload)
}

pub(super) fn read(path: &Path, what: &str) -> Result<String, ModelError> {
    std::fs::read_to_string(path)
        .map_err(|error| ModelError::new(path.display().to_string(), error.to_string(), format!("{what}, readable")))
}

/// How often each group's outermost loops have gone round; threads are in the order of their groups.
fn turns(program: &Workload, experiment: &Experiment, outcome: &Outcome) -> BTreeMap<String, u64> {
    let mut left = outcome.vms[0].turns.iter();
    let mut of = |group: &Group| {
        let threads = group.count.resolve(experiment.thread_count()) as usize;
        (group.name.clone(), left.by_ref().take(threads).sum())
    };
    program.groups.iter().map(&mut of).collect()
}

fn report(experiment: &Experiment, outcome: &Outcome, turns: BTreeMap<String, u64>) -> Report {
    let counters = &outcome.counters;
    let shared = experiment.scheduler() != VmScheduler::Pinned;
    let service = experiment.service.iter().map(|_| "the service VM".to_owned());
    let names = experiment.all_vms().into_iter().map(|spec| spec.workload).chain(service);
    let vms = names.zip(&outcome.vms).filter(|_| shared);
    let devices = outcome.vms[0].io.as_ref().filter(|_| !shared).map(|io| device_report(io, outcome.wall_ps));
    Report {
        wall_s: outcome.seconds(),
        events: counters.events,
        idle_transitions_per_s: outcome.idle_transitions_per_second(),
        lock_wake_us: outcome.lock_wake_us(),
        wakeups: counters.wakeups,
        ipis: counters.ipis,
        exceptions: counters.exceptions,
        migrations: counters.migrations,
        switches: counters.switches,
        tlb_shootdowns: counters.shootdowns,
        exits: exits::exits(&outcome.vms),
        page_walks: outcome.paging.as_ref().map(exits::walks),
        mean_active_cpus: outcome.mean_active(),
        deadlocked: outcome.deadlocked,
        turns,
        ledger: outcome.ledger(),
        cache_misses: outcome.cache_misses.as_ref().map(cache_report),
        devices,
        scheduling: shared.then(|| scheduling(outcome)),
        idle_periods: (outcome.idle_periods.count() > 0).then(|| idle_report(&outcome.idle_periods)),
        vms: vms.map(|(name, vm)| vm_report(name, vm, outcome.wall_ps)).collect(),
        spinning: experiment.ple.and(outcome.spins.as_ref()).map(|spins| spin_report(spins, outcome)),
    }
}

fn spin_report(spins: &Spins, outcome: &Outcome) -> SpinReport {
    let of_vm = |vm: &VmOutcome| VmSpins {
        pause_exits: vm.counters.pause_exits,
        yields: vm.counters.yields,
        directed_yields: vm.counters.directed_yields,
        spun_s: vm.counters.spun_ps as f64 / 1e12,
    };
    let waits = spins.waits.by_power();
    let used = waits.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
    SpinReport {
        waits_by_power: waits[..used].to_vec(),
        exits_by_gap: spins.exits_by_gap.clone(),
        chosen: ple::choose(&spins.waits, &spins.exits_by_gap).ok(),
        vms: outcome.vms.iter().map(of_vm).collect(),
    }
}

fn spin_page(report: &SpinReport) -> String {
    let total = |of: fn(&VmSpins) -> u64| report.vms.iter().map(of).sum::<u64>();
    let spun: f64 = report.vms.iter().map(|vm| vm.spun_s).sum();
    let chosen = report.chosen.map_or_else(
        || "too few waits or exits to choose from".to_owned(),
        |Setting { gap, window }| format!("gap {gap}, window {window} cycles"),
    );
    format!(
        "waits for spin locks  {}, {spun:.6} s on pCPUs\nPAUSE exits           {}, yields {}, directed {}\n\
         empirical setting     {chosen}\n",
        report.waits_by_power.iter().sum::<u64>(),
        total(|vm| vm.pause_exits),
        total(|vm| vm.yields),
        total(|vm| vm.directed_yields),
    )
}

/// Whose misses they are, in the order in which they are counted.
const MISSES_OF: [&str; 4] = ["user", "guest-kernel", "vmm", "vmm-scheduler"];

fn cache_report(misses: &CacheMisses) -> CacheReport {
    let count = |count: f64| count.round() as u64;
    let parts = |of: &Misses| {
        let part = |(index, &name): (usize, &&'static str)| {
            let [all, coherence, conflict] = [of.all, of.coherence, of.conflict].map(|counts| count(counts[index]));
            (name, MissReport { all, coherence, conflict })
        };
        MISSES_OF.iter().enumerate().map(part).collect()
    };
    CacheReport { l2: parts(&misses.l2), llc: parts(&misses.llc) }
}

fn cache_page(report: &CacheReport) -> String {
    let line = |title: &str, of: &BTreeMap<&str, MissReport>| {
        let [user, guest, vmm, scheduler] = MISSES_OF.map(|name| of[name].all);
        format!("{title:22}user {user}, kernel {guest}, VMM {vmm}, its scheduler {scheduler}\n")
    };
    line("L2 misses", &report.l2) + &line("last-level misses", &report.llc)
}

fn scheduling(outcome: &Outcome) -> SchedulingReport {
    let Scheduling { decisions, kicks, switches, preemptions, migrations } = outcome.scheduling;
    SchedulingReport { decisions, kicks, switches, preemptions, migrations }
}

fn idle_report(periods: &IdlePeriods) -> IdleReport {
    let us = |ps: u64| ps as f64 / 1e6;
    let of =
        |(from, count, total): (u64, u64, u64)| IdleLengths { from_us: us(from), count, total_s: total as f64 / 1e12 };
    IdleReport {
        count: periods.count(),
        mean_us: us(periods.mean_ps()),
        half_of_time_below_us: us(periods.half_of_time_ps()),
        lengths: periods.buckets().map(of).collect(),
    }
}

fn idle_page(report: &IdleReport) -> String {
    format!(
        "idle periods of pCPUs {}, of {:.1} us on average; half of the idle time in periods below {:.0} us\n",
        report.count, report.mean_us, report.half_of_time_below_us
    )
}

fn vm_report(workload: String, vm: &VmOutcome, wall_ps: u64) -> VmReport {
    let seconds = |ps: u64| ps as f64 / 1e12;
    VmReport {
        workload,
        wall_s: seconds(vm.wall_ps),
        runs: vm.runs,
        cpu_s: seconds(vm.cpu_ps()),
        steal_s: seconds(vm.total_ps(Account::Steal)),
        exits: exits::exits(std::slice::from_ref(vm)),
        ledger: vm.ledger(wall_ps),
        devices: vm.io.as_ref().map(|io| device_report(io, wall_ps)),
    }
}

fn device_report(io: &IoOutcome, wall_ps: u64) -> DeviceReport {
    let latency = |latencies: &Latencies| LatencyReport {
        count: latencies.count(),
        per_s: latencies.count() as f64 * 1e12 / wall_ps.max(1) as f64,
        mean_us: latencies.mean() as f64 / 1e6,
        p95_us: latencies.percentile(95) as f64 / 1e6,
        p99_us: latencies.percentile(99) as f64 / 1e6,
    };
    DeviceReport {
        received_bytes: io.counts.received_bytes,
        received_packets: io.counts.received_packets,
        sent_bytes: io.counts.sent_bytes,
        sent_packets: io.counts.sent_packets,
        interrupts: io.counts.interrupts,
        notifications: io.counts.notifications,
        requests: latency(&io.latency),
        disk_reads: io.counts.disk_reads,
        disk_writes: io.counts.disk_writes,
        disk_bytes: io.counts.disk_bytes,
        disk: latency(&io.disk_latency),
    }
}

fn device_page(devices: &DeviceReport, wall_s: f64) -> String {
    if devices.interrupts == 0 {
        return String::new();
    }
    let gbps = |bytes: u64| bytes as f64 * 8.0 / wall_s.max(1e-12) / 1e9;
    let latency = |title: &str, of: &LatencyReport| match of.count {
        0 => String::new(),
        _ => format!(
            "{title:22}{:.0}/s, {:.1} us on average, 95 % within {:.1}, 99 % within {:.1}\n",
            of.per_s, of.mean_us, of.p95_us, of.p99_us
        ),
    };
    format!(
        "network               {:.3} Gb/s in, {:.3} Gb/s out; device interrupts {}, notifications {}\n{}{}",
        gbps(devices.received_bytes),
        gbps(devices.sent_bytes),
        devices.interrupts,
        devices.notifications,
        latency("requests", &devices.requests),
        latency("disk requests", &devices.disk),
    )
}

fn page(report: &Report) -> String {
    let Report { scheduling, vms, .. } = report;
    let scheduling = scheduling.as_ref().map_or_else(String::new, |vmm| {
        format!(
            "vCPU switches         {}, preemptions {}, migrations {}\nVMM decisions         {}, kicks {}\n",
            vmm.switches, vmm.preemptions, vmm.migrations, vmm.decisions, vmm.kicks
        )
    });
    let vms: String = vms.iter().enumerate().map(|(number, vm)| vm_page(number, vm, report.wall_s)).collect();
    let deadlock = if report.deadlocked { "\nat its end every thread waited for another one" } else { "" };
    let machine = format!(
        "{}{deadlock}\nsimulated time        {:.6} s\nmean active CPUs      {:.2}\nidle transitions      {:.0}/s\n\
         wake-ups              {}\nlock wake-up latency  {:.2} us\nIPIs                  {}\nexceptions            {}\n\
         migrations            {}\ncontext switches      {}\nTLB shootdowns        {}\n\
         VM exits              {}\nevents                {}\n",
        table::ledger(&report.ledger),
        report.wall_s,
        report.mean_active_cpus,
        report.idle_transitions_per_s,
        report.wakeups,
        report.lock_wake_us,
        report.ipis,
        report.exceptions,
        report.migrations,
        report.switches,
        report.tlb_shootdowns,
        exits::line(&report.exits),
        report.events,
    );
    let walks = report.page_walks.as_ref().map_or_else(String::new, WalkReport::line);
    let misses = report.cache_misses.as_ref().map_or_else(String::new, cache_page);
    let idle = report.idle_periods.as_ref().map_or_else(String::new, idle_page);
    let devices = report.devices.as_ref().map_or_else(String::new, |devices| device_page(devices, report.wall_s));
    let spinning = report.spinning.as_ref().map_or_else(String::new, spin_page);
    machine + &walks + &misses + &devices + &scheduling + &spinning + &idle + &vms
}

fn vm_page(number: usize, vm: &VmReport, run_s: f64) -> String {
    let VmReport { workload, wall_s, runs, cpu_s, steal_s, exits, ledger, devices } = vm;
    let ended = if *runs == 0 { "not yet".to_owned() } else { format!("{runs} times, the last at {wall_s:.6} s") };
    format!(
        "\nVM {number}: {workload}\n{}\nprogram ended         {ended}\n\
         CPU time              {cpu_s:.6} s, stolen {steal_s:.6} s\nVM exits              {}\n{}",
        table::ledger(ledger),
        exits::line(exits),
        devices.as_ref().map_or_else(String::new, |devices| device_page(devices, run_s)),
    )
}
