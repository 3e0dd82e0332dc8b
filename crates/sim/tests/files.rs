//! Calls for files: what kernels share, and what each of PK's switches takes away. Directions and orders of magnitude that follow
//! from the mechanisms.

mod common;

use common::{opteron, workload};
use muster_model::study::{Environment, Experiment, GuestKernel};
use muster_model::{Account, Workload};
use muster_sim::guest::files::FileKernel;
use muster_sim::guest::kernel::Kernel;
use muster_sim::machine::lines::Cause;
use muster_sim::{Outcome, Simulation};

const LINUX: FileKernel = FileKernel::LINUX_2_6_31;

/// Threads, processes of their own, that call so often for one of `files`.
fn calling(directories: &str, files: &str, calls: &str, times: u32) -> Workload {
    workload(&format!(
        r#"{{"name":"calling","directories":{{{directories}}},"files":{{"f":{{{files}}}}},
            "groups":[{{"name":"all","count":"threads","phases":[{{"fork":{{"phases":[
            {{"loop":{{"times":{times},"phases":[{{"file":{{"of":"f","calls":[{calls}],"user_ns":500}}}}]}}}}]}}}}]}}]}}"#
    ))
}

fn run(work: &Workload, environment: Environment, cores: u32, files: FileKernel) -> Outcome {
    let vcpus = (environment != Environment::Native).then_some(32);
    let kernel = Some(GuestKernel::Linux2631);
    let experiment = Experiment { kernel, vcpus, limit_s: 60.0, ..Experiment::new(environment, cores) };
    let kernel = Kernel { files: Some(files), ..Kernel::LINUX_2_6_31 };
    let outcome = Simulation::with_kernel(&experiment, &opteron(), &kernel, work).unwrap().run().unwrap();
    for book in &outcome.books {
        assert_eq!(book.iter().sum::<u64>(), outcome.wall_ps, "the books of every core balance");
    }
    outcome
}

fn native(work: &Workload, cores: u32, files: FileKernel) -> Outcome {
    run(work, Environment::Native, cores, files)
}

fn misses(outcome: &Outcome) -> u64 {
    outcome.line_misses[Cause::Guest as usize]
}

const OWN: &str = r#""all":{"names":9},"own":{"in":"all","own":true,"names":9}"#;

#[test]
fn one_processs_calls_share_nothing() {
    let work = calling(OWN, r#""in":"own","pages":4"#, r#""create",{"write":4},"close","stat","list","unlink""#, 50);
    let alone = native(&work, 1, LINUX);
    assert!(misses(&alone) < 60, "each line comes once from memory: {}", misses(&alone));
    assert_eq!(alone.kernel_spin_ps, 0);
}

#[test]
fn what_is_ones_own_scales_and_what_the_kernel_shares_does_not() {
    let per_core = |calls: &str, files: FileKernel| {
        let work = calling(OWN, r#""in":"own","pages":4"#, calls, 200);
        native(&work, 32, files).seconds() / native(&work, 1, files).seconds()
    };
    assert!(per_core(r#""open",{"read":4},{"read":4},"close""#, FileKernel::PK) < 1.2);
    for calls in [r#""open","close""#, r#""create","close","unlink""#, r#""stat-missing""#, r#""list""#, r#""stat""#] {
        let slower = per_core(calls, LINUX);
        assert!(slower > 2.0, "{calls}: {slower}");
    }
}

#[test]
fn each_switch_of_pk_takes_away_what_it_says() {
    let shared = r#""in":"d","pages":2"#;
    let directory = r#""d":{}"#;
    let mounted = r#""d":{"mounted":true}"#;
    let own = r#""d":{"own":true}"#;
    let own_file = r#""in":"d","own":true,"pages":2"#;
    const PK: FileKernel = FileKernel::PK;
    for (what, without, tree, files, calls) in [
        ("dentry counts", FileKernel { sloppy_dentry_counts: false, ..PK }, directory, shared, r#""stat""#),
        ("mount counts", FileKernel { sloppy_mount_counts: false, ..PK }, directory, shared, r#""stat""#),
        ("lookup", FileKernel { lock_free_lookup: false, ..PK }, directory, shared, r#""stat""#),
        ("mount table", FileKernel { mount_tables_per_core: false, ..PK }, mounted, shared, r#""stat""#),
        ("open files", FileKernel { open_files_per_core: false, ..PK }, own, own_file, r#""open","close""#),
        ("seek", FileKernel { seeks_without_mutex: false, ..PK }, directory, shared, r#""open","seek","close""#),
        (
            "pages",
            FileKernel { page_counts_apart: false, ..PK },
            directory,
            shared,
            r#""open",{"read":2},{"read":2},"close""#,
        ),
        (
            "super block",
            FileKernel { super_block_apart: false, open_files_per_core: false, ..PK },
            own,
            own_file,
            &format!(r#""open",{}"close""#, r#"{"write":1},"#.repeat(30)),
        ),
        ("lists", FileKernel { spares_list_locks: false, ..PK }, own, own_file, r#""stat-missing""#),
        ("lists", FileKernel { spares_list_locks: false, ..PK }, own, own_file, r#""create","close","unlink""#),
    ] {
        let with = if what == "super block" { FileKernel { super_block_apart: true, ..without } } else { PK };
        let work = calling(tree, files, calls, 300);
        let (before, after) = (native(&work, 16, without), native(&work, 16, with));
        let faster = before.seconds() / after.seconds();
        println!("{what}: {faster}; {} and {} misses", misses(&before), misses(&after));
        assert!(faster > 1.02, "{what}: {faster}");
    }
}

#[test]
fn pk_opens_files_below_shared_directories_as_fast_on_32_cores() {
    let work =
        calling(r#""a":{},"b":{"in":"a"}"#, r#""in":"b","own":true"#, r#""open",{"read":1},"close","stat""#, 200);
    let slower = |files| native(&work, 32, files).seconds() / native(&work, 1, files).seconds();
    let (linux, pk) = (slower(LINUX), slower(FileKernel::PK));
    assert!(linux > 5.0 && pk < 1.2, "Linux 2.6.31 {linux}, PK {pk}");
}

#[test]
fn a_semaphores_count_bounces_with_and_without_its_lock() {
    let faulting = workload(
        r#"{"name":"faulting","groups":[{"name":"all","count":"threads","phases":[
        {"loop":{"times":200,"phases":[{"touch-memory":{"pages":4,"cached":true}},{"run":{"ns":50000}}]}}]}]}"#,
    );
    let run = |kernel| {
        let experiment = Experiment { kernel: Some(kernel), limit_s: 60.0, ..Experiment::new(Environment::Native, 32) };
        Simulation::new(&experiment, &opteron(), &faulting, None).unwrap().run().unwrap()
    };
    let (locked, atomic) = (run(GuestKernel::Linux2631), run(GuestKernel::Pk));
    assert!(atomic.seconds() < locked.seconds(), "{} {}", atomic.seconds(), locked.seconds());
    assert_eq!(atomic.kernel_spin_ps, 0);
    assert!(misses(&atomic) > 32 * 200 * 4, "each fault changes the count twice: {}", misses(&atomic));
    let moving: u64 = atomic.books.iter().map(|book| book[Account::CacheTransfer as usize]).sum();
    assert!(moving > 0);
}

/// An interrupt that comes while a lock is held or spun for holds all others up: HVM's, which read the PM timer, the most.
#[test]
fn interrupts_hold_up_those_who_wait() {
    let work = calling(OWN, r#""in":"own","pages":4"#, r#""list""#, 600);
    let [native, hvm] = [Environment::Native, Environment::Hvm].map(|environment| run(&work, environment, 16, LINUX));
    assert!(hvm.seconds() > 1.1 * native.seconds(), "{} {}", hvm.seconds(), native.seconds());
}

#[test]
fn more_shared_files_than_lines_can_be_kept_for_are_refused() {
    let work = calling("", r#""count":4096,"pages":100"#, r#""stat""#, 1);
    let experiment = Experiment { kernel: Some(GuestKernel::Pk), ..Experiment::new(Environment::Native, 2) };
    let error = Simulation::new(&experiment, &opteron(), &work, None).unwrap_err().to_string();
    assert!(error.starts_with("files.f: found 827392 lines"), "{error}");
}
