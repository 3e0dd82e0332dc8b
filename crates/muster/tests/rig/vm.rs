//! A virtual machine of a few instructions, to have one on the host: it pauses, halts, and begins again.

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Where its code lies in its memory, which is one page.
const CODE_AT: u64 = 0x1000;
const PAGE: usize = 0x1000;
/// `mov cx, 200; again: pause; loop again; out 0x10, al; jmp to the first`: 200 PAUSEs, then an exit that the kernel does
/// not handle by itself.
const CODE: [u8; 11] = [0xb9, 200, 0, 0xf3, 0x90, 0xe2, 0xfc, 0xe6, 0x10, 0xeb, 0xf5];

/// It runs until this is dropped.
pub struct Vm {
    is_over: Arc<AtomicBool>,
    vcpu: Option<JoinHandle<Result<u64, String>>>,
}

impl Vm {
    /// Makes it and lets it run.
    pub fn start() -> Result<Self, String> {
        let text = |error: kvm_ioctls::Error| error.to_string();
        let kvm = Kvm::new().map_err(text)?;
        let vm = kvm.create_vm().map_err(text)?;
        let memory = Page::with(&CODE)?;
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: CODE_AT,
            memory_size: PAGE as u64,
            userspace_addr: memory.0 as u64,
        };
        // SAFETY: the page is mapped until the thread below has dropped it, after the machine.
        unsafe { vm.set_user_memory_region(region) }.map_err(text)?;
        let vcpu = vm.create_vcpu(0).map_err(text)?;
        let mut sregs = vcpu.get_sregs().map_err(text)?;
        (sregs.cs.base, sregs.cs.selector) = (0, 0);
        vcpu.set_sregs(&sregs).map_err(text)?;
        let mut regs = vcpu.get_regs().map_err(text)?;
        (regs.rip, regs.rflags) = (CODE_AT, 2);
        vcpu.set_regs(&regs).map_err(text)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_over);
        Ok(Self { is_over, vcpu: Some(std::thread::spawn(move || run(vcpu, vm, memory, &seen))) })
    }

    /// Ends it, and says how many rounds it made.
    pub fn end(mut self) -> Result<u64, String> {
        self.is_over.store(true, Ordering::Relaxed);
        self.vcpu.take().expect("it is ended once").join().map_err(|_| "the vCPU's thread panicked".to_owned())?
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Fields are dropped in the order of the parameters reversed: the vCPU last, but the page after the machine is closed.
fn run(mut vcpu: VcpuFd, vm: VmFd, memory: Page, is_over: &AtomicBool) -> Result<u64, String> {
    let mut rounds = 0;
    while !is_over.load(Ordering::Relaxed) {
        match vcpu.run().map_err(|error| error.to_string())? {
            VcpuExit::IoOut(0x10, _) => rounds += 1,
            other => return Err(format!("the VM exits with {other:?}")),
        }
    }
    drop((vcpu, vm));
    drop(memory);
    Ok(rounds)
}

/// A page of memory of its own.
struct Page(*mut libc::c_void);

// SAFETY: the page is only handed on, and unmapped once.
unsafe impl Send for Page {}

impl Page {
    fn with(code: &[u8]) -> Result<Self, String> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, of which nobody knows.
        let place = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, -1, 0) };
        if place == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().to_string());
        }
        // SAFETY: the page is mapped, writable, and larger than the code.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), place.cast(), code.len()) };
        Ok(Self(place))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `with`, and nobody uses it any more.
        unsafe { libc::munmap(self.0, PAGE) };
    }
}
