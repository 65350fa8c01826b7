//! The schedule that a plan names.

use crate::Algorithm;
use crate::contract::Visit;
use crate::schedule::Cpu;
use kiln_base::Dim;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How the CPU computes a product or a convolution: by the first of these whose guards hold where symbols have
/// their values. The last has none. Of known sizes there is one; kernels that are computed in one way, and those
/// that a GPU's are printed from, name none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision(Vec<Guarded>);

/// A schedule, and when it is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Guarded {
    by: Cpu,
    when: Vec<Guard>,
}

/// What must hold of sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Guard {
    /// A size lies between these, both counted.
    Within(Dim, i64, i64),
    /// Transforms of a convolution cost less than its sums.
    Pays,
}

impl Guard {
    /// Whether it holds; none where that depends on symbols without values. `pays` knows of the geometry.
    fn holds(&self, by: Algorithm, values: &[i64], pays: &Pays<'_>) -> Option<bool> {
        let Guard::Within(size, least, most) = self else {
            return pays(by, values);
        };
        let value = size.eval_checked(values);
        // Of symbols without values only a lower bound is known.
        let bound = || match size.at_least()? {
            at if at > *most => Some(false),
            at if at >= *least && *most == i64::MAX => Some(true),
            _ => None,
        };
        value.map(|v| (*least..=*most).contains(&v)).or_else(bound)
    }
}

/// Whether an algorithm of a convolution pays, where sizes have these values; none where they have none.
pub(crate) type Pays<'a> = dyn Fn(Algorithm, &[i64]) -> Option<bool> + 'a;

impl<S: Into<Cpu>> From<S> for Decision {
    fn from(by: S) -> Decision {
        let (by, when) = (by.into(), vec![]);
        Decision(vec![Guarded { by, when }])
    }
}

impl Decision {
    /// Those of a table, without what is known not to hold, or to hold always.
    pub(crate) fn of(table: Vec<(Algorithm, Vec<Guard>)>, pays: &Pays<'_>) -> Decision {
        let mut list = Vec::new();
        for (by, mut when) in table {
            let known: Vec<_> = when.iter().map(|g| g.holds(by, &[], pays)).collect();
            if known.contains(&Some(false)) {
                continue;
            }
            let mut known = known.into_iter();
            when.retain(|_| known.next().flatten().is_none());
            let last = when.is_empty();
            let by = by.into();
            list.push(Guarded { by, when });
            if last {
                break;
            }
        }
        Decision(list)
    }

    /// The schedule where symbols have these values.
    pub(crate) fn at(&self, values: &[i64], pays: &Pays<'_>) -> Option<Cpu> {
        let holds = |c: &&Guarded| {
            let by = c.by.algorithm;
            let mut all = c.when.iter().map(|g| g.holds(by, values, pays));
            all.all(|holds| holds == Some(true))
        };
        self.0.iter().find(holds).map(|c| c.by)
    }

    /// Every algorithm that it names, the first choice first.
    pub fn names(&self) -> impl Iterator<Item = Algorithm> {
        self.0.iter().map(|c| c.by.algorithm)
    }

    /// The schedule, where it is one for all sizes.
    pub fn one(&self) -> Option<Cpu> {
        match &self.0[..] {
            [one] => Some(one.by),
            _ => None,
        }
    }

    /// Whether something holds for every size in it.
    pub(crate) fn all_dims(&self, holds: &mut Visit<'_>) -> bool {
        let guards = self.0.iter().flat_map(|c| &c.when);
        let mut sizes = guards.filter_map(|g| match g {
            Guard::Within(size, ..) => Some(size),
            Guard::Pays => None,
        });
        sizes.all(holds)
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
