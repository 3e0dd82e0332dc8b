//! System calls for files, compiled to what they touch and work: Linux 2.6.31's (fs/namei.c, fs/dcache.c, fs/file_table.c,
//! fs/inode.c, fs/libfs.c, mm/shmem.c) on tmpfs or on a file system with a journal (fs/jbd), or PK's.
//!
//! - A *path* begins at the working directory, whose dentry and mount are referenced twice (`path_init`, and the copy that
//!   `link_path_walk` keeps). Each component's dentry is found under its `d_lock` and referenced, and the one before is let
//!   go. tmpfs's dentries stay referenced while the file exists, so that letting one go never takes `dcache_lock`.
//! - A name that is *not there* is looked up under the directory's `i_mutex`: tmpfs makes a dentry, hashes it, and drops it
//!   again with the last reference (`simple_lookup`): `dcache_lock` four times.
//! - *Creating* makes dentry and inode: `dcache_lock` four times, `inode_lock`, the super block's `stat_lock`. *Removing* takes
//!   each twice. Each *fresh page* takes `stat_lock` (`shmem_getpage`).
//! - *Opening* and *closing* put the file on the super block's list and take it off, under `files_lock`.
//! - *Listing* takes `dcache_lock` for every name (`dcache_readdir`).
//! - An `i_mutex` is spun for while its owner runs (since 2.6.29), and nobody leaves its CPU inside of a call here: they are
//!   all spun for, in order of arrival.
//! - Threads of one process share `fs->lock` and the table of open files; a child process has its own.
//!
//! Left out: what only a few of these calls do and what is per CPU (slab, LRU batches, the count of open files), the hash
//! chains, page locks, and access times, which are seldom written (relatime).

use super::{Compiler, Op};
use crate::engine::{NS, Ps};
use crate::guest::files::{How, ObjectSpec, Touch};
use muster_model::ModelError;
use muster_model::workload::{Duration, FileCall, Files, Workload};
use std::cell::Cell;
use std::collections::BTreeMap;

/// Most lines of shared files' dentries and pages.
const MAX_SHARED_LINES: u64 = 1 << 16;
/// Changing an open file's position: assumed.
const SEEK: Ps = 40 * NS;
/// A call that copies many pages looks after so many whether others want the CPU (`cond_resched`).
const PAGES_AT_ONCE: u64 = 64;

/// Where a program's shared objects are: numbers in [`super::Program::objects`], and of `i_mutex`es in its locks.
#[derive(Debug)]
pub struct Layout {
    dcache: u32,
    inodes: u32,
    files: u32,
    mounts: u32,
    space: u32,
    journal: u32,
    journal_list: u32,
    process: u32,
    process_files: u32,
    working_directory: Directory,
    root_mount: u32,
    /// Those that threads share.
    directories: BTreeMap<String, Directory>,
    /// Mounts that threads share, by directory.
    mounted: BTreeMap<String, u32>,
    /// Those that threads share.
    sets: BTreeMap<String, Set>,
}

/// A directory that threads share.
#[derive(Debug, Clone, Copy)]
struct Directory {
    /// `d_lock` and `d_count`; the list of what is in it; the inode with its `i_mutex`.
    dentry: u32,
    mutex: u32,
}

/// The lines of a directory's dentry behind the first: what is in it, and the inode.
const NAMES_LINE: u8 = 1;
const INODE_LINE: u8 = 2;

/// A set of files that threads share.
#[derive(Debug, Clone, Copy)]
struct Set {
    /// The first file's dentry (and the inode, [`FILE_INODE_LINE`]), behind it its pages, then the next file's.
    dentry: u32,
    stride: u32,
    /// The first file's.
    mutex: u32,
}

const FILE_INODE_LINE: u8 = 1;
/// The line of a page's flags, where it is not that of its count.
const FLAGS_LINE: u8 = 1;
/// What lies under `dcache_lock`: the number of dentries and the neighbours in a list.
const DENTRY_LISTS: u8 = 1;
/// What lies under `inode_lock`: the lists' heads and the neighbour's links.
const INODE_LISTS: u8 = 2;
/// What lies under `files_lock`: the super block with the list's head, and the neighbour's links.
const FILE_LISTS: u8 = 2;
/// The super block, as the first line under `files_lock`.
const SUPER_BLOCK: u8 = 1;

impl Layout {
    /// Lays out what a workload's threads share: objects, and so many locks, from number `first_lock` on.
    ///
    /// # Errors
    /// When that is too much.
    pub fn new(workload: &Workload, first_lock: u32) -> Result<(Self, Vec<ObjectSpec>, u32), ModelError> {
        let mut objects = Vec::new();
        let locks = Cell::new(0);
        let mutex = |count: u32| first_lock + locks.replace(locks.get() + count);
        let mut object = |has_lock: bool, more_lines| {
            objects.push(ObjectSpec { lock: has_lock.then(|| mutex(1)), more_lines });
            objects.len() as u32 - 1
        };
        let mut layout = Self {
            dcache: object(true, DENTRY_LISTS),
            inodes: object(true, INODE_LISTS),
            files: object(true, FILE_LISTS),
            mounts: object(true, 0),
            space: object(true, 0),
            journal: object(true, 0),
            journal_list: object(true, 1),
            process: object(false, 0),
            process_files: object(true, 0),
            working_directory: Directory { dentry: object(true, INODE_LINE), mutex: mutex(1) },
            root_mount: object(false, 0),
            directories: BTreeMap::new(),
            mounted: BTreeMap::new(),
            sets: BTreeMap::new(),
        };
        for (name, directory) in &workload.directories {
            if workload.path_to(Some(name)).last().is_some_and(|step| step.own) {
                continue;
            }
            let shared = Directory { dentry: object(true, INODE_LINE), mutex: mutex(1) };
            layout.directories.insert(name.clone(), shared);
            if directory.mounted {
                layout.mounted.insert(name.clone(), object(false, 0));
            }
        }
        let mut lines = 0;
        for (name, files) in workload.files.iter().filter(|(_, files)| !is_own(workload, files)) {
            lines += files.count * (2 + 2 * files.pages);
            if lines > MAX_SHARED_LINES {
                let found = format!("{lines} lines of files that threads share");
                let allowed = format!("at most {MAX_SHARED_LINES}: 2 a file and 2 a page");
                return Err(ModelError::new(format!("files.{name}"), found, allowed));
            }
            let mut first = None;
            for _ in 0..files.count {
                first.get_or_insert(object(true, FILE_INODE_LINE));
                (0..files.pages).for_each(|_| {
                    object(false, FLAGS_LINE);
                });
            }
            let dentry = first.expect("validation found at least one file");
            let stride = if files.count > 1 { 1 + files.pages as u32 } else { 0 };
            let set = Set { dentry, stride, mutex: mutex(files.count as u32) };
            layout.sets.insert(name.clone(), set);
        }
        Ok((layout, objects, locks.get()))
    }
}

fn is_own(workload: &Workload, files: &Files) -> bool {
    files.own || workload.path_to(files.parent.as_deref()).last().is_some_and(|step| step.own)
}

/// One thread's file of a set, while a call is compiled.
#[derive(Clone, Copy)]
struct Target<'a> {
    files: &'a Files,
    /// Where threads share it.
    set: Option<Set>,
}

/// Where a path has led to: the last dentry and the mount, where threads share them.
#[derive(Clone, Copy)]
struct Place {
    dentry: Option<(u32, u32)>,
    mount: Option<u32>,
}

impl Compiler<'_> {
    /// A phase `file`.
    pub(super) fn file(
        &mut self,
        of: &str,
        calls: &[FileCall],
        user_ns: Duration,
        place: &str,
    ) -> Result<(), ModelError> {
        let workload = self.workload;
        let files = &workload.files[of];
        let target = Target { files, set: self.layout(place)?.sets.get(of).copied() };
        if target.set.is_some() && files.count > 1 {
            self.emit(Op::Pick(files.count as u32));
        }
        let mut fresh = false;
        let mut written = 0;
        for call in calls {
            if user_ns != Duration::default() {
                let ns = self.duration(user_ns);
                self.emit(Op::Run(ns));
            }
            match *call {
                FileCall::Stat => self.stat(target),
                FileCall::StatMissing => self.stat_missing(target),
                FileCall::Fstat => self.call(|this| this.work(this.file_prices.stat)),
                FileCall::Statfs => self.call(|this| {
                    this.lock(this.at().space, 0);
                    this.work(this.file_prices.stat);
                }),
                FileCall::Open => self.call(|this| this.open(target)),
                FileCall::Create => {
                    (fresh, written) = (true, 0);
                    self.call(|this| this.create(target));
                }
                FileCall::Read(pages) => self.read(target, pages),
                FileCall::Write(pages) => {
                    let from = if fresh { written } else { 0 };
                    self.write(target, from, pages, fresh);
                    written += pages;
                }
                FileCall::Seek => self.seek(target),
                FileCall::Close => {
                    fresh = false;
                    self.call(|this| this.close(target));
                }
                FileCall::Rename => self.call(|this| this.rename(target)),
                FileCall::Unlink => self.call(|this| this.unlink(target)),
                FileCall::List => self.list(target),
            }
        }
        Ok(())
    }

    // ---- what calls are made of ----

    fn layout(&self, place: &str) -> Result<&Layout, ModelError> {
        let found = "`file` under a kernel whose locks for files are not simulated (Linux 3.2)";
        let lacks = || ModelError::new(place, found, "`kernel = \"linux-2.6.31\"` or `\"pk\"` in the experiment");
        self.layout.as_ref().ok_or_else(lacks)
    }

    fn at(&self) -> &Layout {
        self.layout.as_ref().expect("the phase's beginning found the layout")
    }

    /// A system call.
    fn call(&mut self, body: impl FnOnce(&mut Self)) {
        self.emit(Op::Call);
        self.work(self.prices.syscall);
        body(self);
        self.settle();
        self.emit(Op::Return);
    }

    fn work(&mut self, work: Ps) {
        match self.pending.last_mut() {
            Some(touch) => touch.work += work,
            None => self.pending.push(Touch { object: 0, stride: 0, how: How::Work, work }),
        }
    }

    fn touch_with(&mut self, (object, stride): (u32, u32), how: How) {
        self.pending.push(Touch { object, stride, how, work: 0 });
    }

    fn lock(&mut self, object: u32, further: u8) {
        self.touch_with((object, 0), How::Lock(further));
    }

    /// What is pending becomes operations.
    fn settle(&mut self) {
        for touch in std::mem::take(&mut self.pending) {
            let next = self.program.touches.len() as u32;
            let index = *self.known_touches.entry(touch).or_insert(next);
            if index == next {
                self.program.touches.push(touch);
            }
            self.emit(Op::Touch(index));
        }
    }

    /// `body` under an `i_mutex` that threads share, if they do.
    fn under(&mut self, mutex: Option<Mutex>, body: impl FnOnce(&mut Self)) {
        let Some(mutex) = mutex else { return body(self) };
        self.touch_with(mutex.inode, How::Write(mutex.line));
        self.settle();
        let ops = match mutex.picked {
            true => (Op::TakePicked(mutex.lock), Op::GivePicked(mutex.lock)),
            false => (Op::Acquire(mutex.lock), Op::Release(mutex.lock)),
        };
        self.emit(ops.0);
        body(self);
        self.settle();
        self.emit(ops.1);
    }

    // ---- paths ----

    fn count_dentry(&mut self, dentry: Option<(u32, u32)>) {
        if let Some(dentry) = dentry.filter(|_| !self.of_files.sloppy_dentry_counts) {
            self.touch_with(dentry, How::Write(0));
        }
    }

    fn count_mount(&mut self, mount: Option<u32>) {
        if let Some(mount) = mount.filter(|_| !self.of_files.sloppy_mount_counts) {
            self.touch_with((mount, 0), How::Write(0));
        }
    }

    /// A component is found and referenced.
    fn find(&mut self, dentry: Option<(u32, u32)>) {
        if let Some(dentry) = dentry {
            if self.of_files.lock_free_lookup {
                self.touch_with(dentry, How::Read(0));
                self.count_dentry(Some(dentry));
            } else {
                self.touch_with(dentry, How::Lock(0));
            }
        }
        self.work(self.file_prices.path_component);
    }

    /// Walks to the directory `parent`, and with `last` one component further. Both stay referenced at the end.
    fn walk(&mut self, parent: Option<&str>, last: Option<Target>) -> Place {
        let workload = self.workload;
        let start = (self.at().working_directory.dentry, 0);
        let root = Some(self.at().root_mount);
        self.work(self.file_prices.path);
        if !self.in_child {
            self.touch_with((self.at().process, 0), How::Write(0));
        }
        self.count_dentry(Some(start));
        self.count_mount(root);
        let mut here = Place { dentry: Some(start), mount: root };
        for step in workload.path_to(parent) {
            let dentry = self.at().directories.get(step.name).map(|directory| (directory.dentry, 0));
            self.find(dentry);
            self.count_dentry(here.dentry);
            here.dentry = dentry;
            if workload.directories[step.name].mounted {
                let mount = self.at().mounted.get(step.name).copied();
                if !self.of_files.mount_tables_per_core {
                    self.lock(self.at().mounts, 0);
                }
                self.count_mount(mount);
                self.count_mount(here.mount);
                here.mount = mount;
            }
        }
        if let Some(target) = last {
            let dentry = target.set.map(|set| (set.dentry, set.stride));
            self.find(dentry);
            self.count_dentry(here.dentry);
            here.dentry = dentry;
        }
        // The copy of where it began is let go.
        self.count_dentry(Some(start));
        self.count_mount(root);
        here
    }

    fn leave(&mut self, place: Place) {
        self.count_dentry(place.dentry);
        self.count_mount(place.mount);
    }

    /// Where a file is, without the cost of going there.
    fn place_of(&self, target: Target) -> Place {
        let workload = self.workload;
        let path = workload.path_to(target.files.parent.as_deref());
        let mounted = path.iter().rev().find(|step| workload.directories[step.name].mounted);
        let mount = match mounted {
            Some(step) => self.at().mounted.get(step.name).copied(),
            None => Some(self.at().root_mount),
        };
        Place { dentry: target.set.map(|set| (set.dentry, set.stride)), mount }
    }

    fn directory(&self, target: Target) -> Option<Directory> {
        match &target.files.parent {
            Some(name) => self.at().directories.get(name).copied(),
            None => Some(self.at().working_directory),
        }
    }

    fn directory_mutex(&self, target: Target) -> Option<Mutex> {
        self.directory(target).map(|directory| Mutex {
            inode: (directory.dentry, 0),
            line: INODE_LINE,
            lock: directory.mutex,
            picked: false,
        })
    }

    fn file_mutex(&self, target: Target) -> Option<Mutex> {
        target.set.map(|set| Mutex {
            inode: (set.dentry, set.stride),
            line: FILE_INODE_LINE,
            lock: set.mutex,
            picked: target.files.count > 1,
        })
    }

    // ---- dentries, inodes, open files ----

    /// A dentry for a name that is not there, hashed.
    fn new_dentry(&mut self, target: Target) {
        self.work(self.file_prices.dentry);
        let dcache = self.at().dcache;
        self.lock(dcache, DENTRY_LISTS);
        if let Some(directory) = self.directory(target) {
            self.touch_with((directory.dentry, 0), How::Write(NAMES_LINE));
        }
        if !self.of_files.spares_list_locks {
            self.lock(dcache, 0);
        }
        self.lock(dcache, 0);
    }

    /// A dentry's last reference goes, and the dentry with it.
    fn free_dentry(&mut self, target: Target) {
        self.lock(self.at().dcache, DENTRY_LISTS);
        if let Some(directory) = self.directory(target) {
            self.touch_with((directory.dentry, 0), How::Write(NAMES_LINE));
        }
        self.work(self.file_prices.dentry);
    }

    fn note_in_journal(&mut self) {
        if !self.workload.journaled {
            return;
        }
        let (journal, list) = (self.at().journal, self.at().journal_list);
        self.lock(journal, 0);
        self.work(self.file_prices.journal);
        self.lock(list, 1);
        self.lock(journal, 0);
    }

    fn change_open_files(&mut self) {
        if !self.in_child {
            self.lock(self.at().process_files, 0);
        }
        if !self.of_files.open_files_per_core {
            self.lock(self.at().files, FILE_LISTS);
        }
    }

    fn read_super_block(&mut self) {
        if !self.of_files.super_block_apart {
            self.touch_with((self.at().files, 0), How::Read(SUPER_BLOCK));
        }
    }

    // ---- calls ----

    fn stat(&mut self, target: Target) {
        self.call(|this| {
            let file = this.walk(target.files.parent.as_deref(), Some(target));
            this.work(this.file_prices.stat);
            this.leave(file);
        });
    }

    fn stat_missing(&mut self, target: Target) {
        self.call(|this| {
            let directory = this.walk(target.files.parent.as_deref(), None);
            this.work(this.file_prices.path_component);
            this.under(this.directory_mutex(target), |this| this.new_dentry(target));
            this.free_dentry(target);
            this.leave(directory);
        });
    }

    fn open(&mut self, target: Target) {
        self.walk(target.files.parent.as_deref(), Some(target));
        self.opened();
    }

    fn opened(&mut self) {
        self.read_super_block();
        self.work(self.file_prices.open);
        self.change_open_files();
    }

    fn close(&mut self, target: Target) {
        self.change_open_files();
        self.leave(self.place_of(target));
        self.work(self.file_prices.close);
    }

    fn create(&mut self, target: Target) {
        let mut directory = self.walk(target.files.parent.as_deref(), None);
        self.work(self.file_prices.path_component);
        self.under(self.directory_mutex(target), |this| {
            this.new_dentry(target);
            this.lock(this.at().space, 0);
            this.work(this.file_prices.new_inode);
            this.lock(this.at().inodes, INODE_LISTS);
            this.lock(this.at().dcache, 0);
            this.note_in_journal();
        });
        // The mount stays referenced by the open file.
        directory.mount = None;
        self.leave(directory);
        self.opened();
    }

    fn unlink(&mut self, target: Target) {
        let directory = self.walk(target.files.parent.as_deref(), None);
        self.work(self.file_prices.path_component);
        self.under(self.directory_mutex(target), |this| {
            this.lock(this.at().dcache, 0);
            this.note_in_journal();
        });
        self.free_dentry(target);
        self.lock(self.at().inodes, INODE_LISTS);
        self.work(self.file_prices.free_page.saturating_mul(target.files.pages));
        self.lock(self.at().space, 0);
        self.lock(self.at().space, 0);
        if !self.of_files.spares_list_locks {
            self.lock(self.at().inodes, 0);
        }
        self.work(self.file_prices.free_inode);
        self.leave(directory);
    }

    fn rename(&mut self, target: Target) {
        let parent = target.files.parent.as_deref();
        let (from, to) = (self.walk(parent, None), self.walk(parent, None));
        self.work(2 * self.file_prices.path_component);
        self.under(self.directory_mutex(target), |this| {
            this.new_dentry(target);
            this.note_in_journal();
            this.lock(this.at().dcache, DENTRY_LISTS);
        });
        self.free_dentry(target);
        self.leave(from);
        self.leave(to);
    }

    fn seek(&mut self, target: Target) {
        let mutex = self.file_mutex(target).filter(|_| !self.of_files.seeks_without_mutex);
        self.call(|this| this.under(mutex, |this| this.work(SEEK)));
    }

    fn read(&mut self, target: Target, pages: u64) {
        let each = self.file_prices.page_lookup + self.file_prices.page_copy;
        self.call(|this| {
            for page in 0..pages {
                match target.set {
                    Some(set) => this.read_shared(set, page),
                    None => this.work(each),
                }
                this.breathe(page);
            }
        });
    }

    /// A page that others read as well: referenced, its flags read after the copy, and let go.
    fn read_shared(&mut self, set: Set, page: u64) {
        let page = (set.dentry + 1 + page as u32, set.stride);
        let flags = if self.of_files.page_counts_apart { FLAGS_LINE } else { 0 };
        self.touch_with(page, How::Write(0));
        self.work(self.file_prices.page_lookup + self.file_prices.page_copy);
        self.touch_with(page, How::Read(flags));
        self.touch_with(page, How::Write(0));
    }

    /// Between two pages, others may have the CPU now and then.
    fn breathe(&mut self, page: u64) {
        if (page + 1).is_multiple_of(PAGES_AT_ONCE) {
            self.settle();
            self.emit(Op::Return);
        }
    }

    fn write(&mut self, target: Target, from: u64, pages: u64, fresh: bool) {
        let each = self.file_prices.page_lookup + self.file_prices.page_copy;
        self.call(|this| {
            this.under(this.file_mutex(target), |this| {
                this.read_super_block();
                if fresh && from == 0 && !this.of_files.spares_list_locks {
                    this.lock(this.at().inodes, 1);
                }
                for page in from..from + pages {
                    if fresh {
                        this.lock(this.at().space, 0);
                        this.work(this.file_prices.new_page);
                    }
                    if let Some(set) = target.set {
                        this.touch_with((set.dentry + 1 + page as u32, set.stride), How::Write(0));
                    }
                    this.work(each);
                    this.breathe(page);
                }
                if fresh {
                    this.note_in_journal();
                }
            });
        });
    }

    /// opendir, fstat, getdents twice (the second finds the end), close.
    fn list(&mut self, target: Target) {
        let parent = target.files.parent.as_deref();
        // `.` and `..` as well.
        let names = 2 + parent.map_or(0, |name| self.workload.directories[name].names);
        let mut directory = None;
        self.call(|this| {
            directory = Some(this.walk(parent, None));
            this.opened();
            this.lock(this.at().dcache, DENTRY_LISTS);
            this.work(this.file_prices.dentry);
        });
        self.call(|this| this.work(this.file_prices.stat));
        self.get_names(target, names);
        self.get_names(target, 0);
        self.call(|this| {
            this.change_open_files();
            this.free_dentry(target);
            this.leave(directory.expect("it was opened"));
            this.work(this.file_prices.close);
        });
    }

    fn get_names(&mut self, target: Target, names: u64) {
        self.call(|this| {
            this.under(this.directory_mutex(target), |this| {
                let dcache = this.at().dcache;
                this.lock(dcache, 0);
                for _ in 0..names {
                    this.work(this.file_prices.list_name);
                    this.lock(dcache, 0);
                }
            });
        });
    }
}

/// An `i_mutex` that threads share.
#[derive(Clone, Copy)]
struct Mutex {
    /// The object that has the inode, and which of its lines that is.
    inode: (u32, u32),
    line: u8,
    /// The lock; of the file that the thread has picked, the first file's.
    lock: u32,
    picked: bool,
}
