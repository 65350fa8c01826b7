//! The schedule that a plan names.

use crate::Algorithm;
use crate::Dims;
use crate::schedule::Cpu;
use kiln_base::Dim;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The choice of the schedule of a product or a convolution on the CPU: the first of these whose guards hold for the
/// values of the symbols. The last one has no guards. With known sizes there is only one. Kernels with a single
/// algorithm, and those from which a GPU's are emitted, name none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision(Vec<Guarded>);

/// A schedule, and the condition for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Guarded {
    by: Cpu,
    when: Vec<Guard>,
}

/// A condition on sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Guard {
    /// A size is between these, both included.
    Within(Dim, i64, i64),
    /// Transforms of a convolution cost less than its sums.
    Pays,
}

impl Guard {
    /// True if the guard holds; `None` if that depends on symbols without values. `pays` knows the geometry.
    fn holds(&self, by: Algorithm, values: &[i64], pays: &Pays<'_>) -> Option<bool> {
        let Guard::Within(size, min, max) = self else {
            return pays(by, values);
        };
        let value = size.eval_checked(values);
        // For symbols without values, only a lower bound is known.
        let bound = || match size.lower_bound()? {
            lower if lower > *max => Some(false),
            lower if lower >= *min && *max == i64::MAX => Some(true),
            _ => None,
        };
        value.map(|v| (*min..=*max).contains(&v)).or_else(bound)
    }
}

/// True if an algorithm of a convolution pays, for these values of sizes; `None` if they have no values.
pub(crate) type Pays<'a> = dyn Fn(Algorithm, &[i64]) -> Option<bool> + 'a;

impl<S: Into<Cpu>> From<S> for Decision {
    fn from(by: S) -> Decision {
        let (by, when) = (by.into(), vec![]);
        Decision(vec![Guarded { by, when }])
    }
}

impl Decision {
    /// Builds the decision of a table, without guards that are known to hold always, and without entries that are known
    /// never to hold.
    pub(crate) fn of(table: Vec<(Algorithm, Vec<Guard>)>, pays: &Pays<'_>) -> Decision {
        let mut list = Vec::new();
        for (by, mut when) in table {
            let results: Vec<_> = when.iter().map(|g| g.holds(by, &[], pays)).collect();
            if results.contains(&Some(false)) {
                continue;
            }
            let mut results = results.into_iter();
            when.retain(|_| results.next().flatten().is_none());
            let last = when.is_empty();
            let by = by.into();
            list.push(Guarded { by, when });
            if last {
                break;
            }
        }
        Decision(list)
    }

    /// Returns the schedule for these values of symbols.
    pub(crate) fn at(&self, values: &[i64], pays: &Pays<'_>) -> Option<Cpu> {
        let holds = |c: &&Guarded| {
            let by = c.by.algorithm;
            let mut guards = c.when.iter().map(|g| g.holds(by, values, pays));
            guards.all(|holds| holds == Some(true))
        };
        self.0.iter().find(holds).map(|c| c.by)
    }

    /// Returns every algorithm that it names, the first choice first.
    pub fn names(&self) -> impl Iterator<Item = Algorithm> {
        self.0.iter().map(|c| c.by.algorithm)
    }

    /// Returns the schedule, if it is the same for all sizes.
    pub fn one(&self) -> Option<Cpu> {
        match &self.0[..] {
            [one] => Some(one.by),
            _ => None,
        }
    }
}

impl Dims for Decision {
    fn all_dims(&self, holds: &mut dyn FnMut(&Dim) -> bool) -> bool {
        let mut guards = self.0.iter().flat_map(|c| &c.when);
        guards.all(|g| match g {
            Guard::Within(size, ..) => holds(size),
            Guard::Pays => true,
        })
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Guarded { by, .. }) in self.0.iter().enumerate() {
            write!(f, "{}{by}", if i > 0 { " or " } else { "" })?;
        }
        Ok(())
    }
}
