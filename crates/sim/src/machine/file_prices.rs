//! The prices of calls for files, by name, from a machine profile.

use crate::engine::{Ps, from_ns};
use muster_model::Profile;

macro_rules! file_prices {
    ($($(#[$doc:meta])* $field:ident = $name:literal or $ns:literal,)*) => {
        /// What calls for files work, in picoseconds, without the transfers of lines and waits for locks.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct FilePrices {
            $($(#[$doc])* pub $field: Ps,)*
        }

        impl FilePrices {
            /// The names of all prices, and what is assumed where a profile does not say, in ns.
            pub const NAMES: &[(&str, f64)] = &[$(($name, $ns)),*];

            /// Takes the prices out of a profile; those that it lacks are assumed.
            pub fn new(profile: &Profile) -> Self {
                Self { $($field: from_ns(profile.price_ns($name).unwrap_or($ns)),)* }
            }
        }
    };
}

file_prices! {
    /// Copying a path from the program, and finding where it begins.
    path = "sim.kernel.path" or 250.0,
    /// One step of a path lookup in the dentry cache.
    path_component = "sim.kernel.path-component" or 150.0,
    /// A file's attributes, copied to the program.
    stat = "sim.kernel.stat" or 250.0,
    /// Making an open file and its descriptor, and checking that it may be opened.
    open = "sim.kernel.open-file" or 500.0,
    /// Their release.
    close = "sim.kernel.close-file" or 300.0,
    /// A dentry made, or freed.
    dentry = "sim.kernel.dentry" or 200.0,
    /// An inode made.
    new_inode = "sim.kernel.new-inode" or 800.0,
    /// An inode freed.
    free_inode = "sim.kernel.free-inode" or 600.0,
    /// One name of a directory, copied to the program.
    list_name = "sim.kernel.list-name" or 80.0,
    /// Finding a page in the page cache.
    page_lookup = "sim.kernel.page-lookup" or 120.0,
    /// Copying a page between the page cache and the program.
    page_copy = "sim.kernel.page-copy" or 400.0,
    /// Allocating a page and putting it into the page cache.
    new_page = "sim.kernel.new-page" or 350.0,
    /// Taking a page out of it and freeing it.
    free_page = "sim.kernel.free-page" or 150.0,
    /// A journal's record of a change to a directory or inode.
    journal = "sim.kernel.journal" or 800.0,
}
