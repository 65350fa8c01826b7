//! Holders of memory: a category, and the line of the program or a name.

use crate::lock::lock;
use hashbrown::HashMap;
use std::cell::RefCell;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, LazyLock, Mutex};

/// The purpose of some memory.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Category {
    /// Values of parameters.
    Parameters,
    /// Gradients of parameters.
    Gradients,
    /// State of optimisers, such as moments and master weights.
    Moments,
    /// Results of operations, and the temporaries of runs.
    Activations,
    /// Scratch memory of kernels.
    Workspaces,
    /// Results of *prepare* and constants of plans, kept between runs.
    Caches,
    /// Values that the program gave, and everything else.
    #[default]
    Data,
}

impl Category {
    /// All categories, in the order of the discriminants.
    pub const ALL: [Category; 7] = [
        Category::Parameters,
        Category::Gradients,
        Category::Moments,
        Category::Activations,
        Category::Workspaces,
        Category::Caches,
        Category::Data,
    ];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Category::Parameters => "parameters",
            Category::Gradients => "gradients",
            Category::Moments => "moments",
            Category::Activations => "activations",
            Category::Workspaces => "workspaces",
            Category::Caches => "caches",
            Category::Data => "data",
        }
    }
}

/// The holder of some memory: a [`Category`], and the line of the program or a name. Holders are interned.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(u32);

/// The number of bits of a [`Holder`] below its index: a flag for lines, and the category.
const BITS: u32 = 4;

#[derive(Clone, PartialEq, Eq, Hash)]
enum Origin {
    None,
    Line(&'static str, u32),
    Name(Arc<str>),
}

#[derive(Default)]
struct Holders {
    list: Vec<Origin>,
    known: HashMap<(Category, Origin), Holder>,
}

thread_local! {
    /// The holders of lines that this thread has used, by the address of the location, of which a line may have
    /// several. This avoids contention between threads.
    static LINES: RefCell<HashMap<(Category, usize), Holder>> = RefCell::default();
}

static HOLDERS: LazyLock<Mutex<Holders>> = LazyLock::new(|| {
    let mut holders = Holders::default();
    for category in Category::ALL {
        holders.get(category, Origin::None);
    }
    Mutex::new(holders)
});

impl Holders {
    fn get(&mut self, category: Category, origin: Origin) -> Holder {
        let list = &mut self.list;
        let entry = self.known.entry((category, origin.clone()));
        *entry.or_insert_with(|| {
            let is_line = u32::from(matches!(origin, Origin::Line(..)));
            list.push(origin);
            Holder(((list.len() - 1) as u32) << BITS | (category as u32) << 1 | is_line)
        })
    }
}

impl Holder {
    /// Returns the holder of a category whose line is unknown.
    pub const fn unknown(category: Category) -> Holder {
        Holder((category as u32) << BITS | (category as u32) << 1)
    }

    /// Returns the holder for a line of the program.
    pub fn line(category: Category, loc: &'static Location<'static>) -> Holder {
        let intern = || lock(&HOLDERS).get(category, Origin::Line(loc.file(), loc.line()));
        let key = (category, std::ptr::from_ref(loc).addr());
        let lookup =
            |lines: &RefCell<HashMap<_, _>>| *lines.borrow_mut().entry(key).or_insert_with(intern);
        // Thread-local state is gone while a thread ends.
        LINES.try_with(lookup).unwrap_or_else(|_| intern())
    }

    /// Returns the holder with a name.
    pub fn named(category: Category, name: &str) -> Holder {
        lock(&HOLDERS).get(category, Origin::Name(name.into()))
    }

    /// Returns the category.
    pub fn category(self) -> Category {
        Category::ALL[(self.0 >> 1 & 7) as usize]
    }

    /// True if it is a line of the program.
    pub fn is_line(self) -> bool {
        self.0 & 1 == 1
    }

    /// Returns its index in lists of holders.
    pub(super) fn index(self) -> usize {
        (self.0 >> BITS) as usize
    }

    pub(super) fn bits(self) -> u32 {
        self.0
    }

    /// Returns the holder with these [`Holder::bits`].
    pub(super) fn from_bits(bits: u32) -> Holder {
        Holder(bits)
    }
}

/// The line or name, or the category if neither is known.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = lock(&HOLDERS).list[self.index()].clone();
        match origin {
            Origin::None => f.write_str(self.category().name()),
            Origin::Line(file, line) => write!(f, "{file}:{line}"),
            Origin::Name(name) => f.write_str(&name),
        }
    }
}
