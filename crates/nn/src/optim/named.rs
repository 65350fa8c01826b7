//! What an optimiser keeps, by name.

use super::Optimizer;
use super::group::Group;
use super::master::MASTER;
use kiln_tensor::Var;

/// Something that an optimiser keeps; see [`Optimizer::named_state`].
#[derive(Clone, Debug)]
pub struct NamedState {
    /// Its name.
    pub name: String,
    /// The cell.
    pub var: Var,
    /// What its elements are, where each is a number of its own: `lr`, `beta1`, …
    pub elements: Vec<String>,
}

impl Optimizer {
    /// The cells of everything that steps read or write beside the parameters: of each group `numbers` (its
    /// hyperparameters, f64) and `step` and what else is counted for each parameter (f64, in the order of the
    /// parameters); and of each parameter its moments, such as `exp_avg.fc.weight`, by the name that it has in its
    /// module, else by its number, and its master weight (`master_param`). What is of a group begins with `groups.0.` where there are several.
    ///
    /// ```
    /// use kiln_nn::optim::{Adam, Optimizer};
    /// use kiln_nn::{Linear, Module};
    /// let model = Linear::new(3, 2)?;
    /// let optimizer = Optimizer::new(model.parameters(), Adam::new())?;
    /// let state = optimizer.named_state();
    /// let names: Vec<&str> = state.iter().map(|s| &s.name[..]).collect();
    /// assert_eq!(names[..3], ["numbers", "step", "exp_avg.weight"]);
    /// assert_eq!(state[0].elements[0], "lr");
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn named_state(&self) -> Vec<NamedState> {
        let several = self.groups.len() > 1;
        let (mut all, mut first) = (Vec::new(), 0);
        for (number, group) in self.groups.iter().enumerate() {
            let prefix = match several {
                true => format!("groups.{number}."),
                false => String::new(),
            };
            group.own_state(&prefix, &mut all);
            group.moments(first, &mut all);
            first += group.parameters.len();
        }
        all
    }
}

impl Group {
    fn own_state(&self, prefix: &str, all: &mut Vec<NamedState>) {
        let numbers = self.values.iter();
        all.push(NamedState {
            name: format!("{prefix}numbers"),
            var: self.numbers().clone(),
            elements: numbers.map(|(name, _)| name.to_string()).collect(),
        });
        let counts = self.counts.iter();
        all.extend(counts.map(|(name, var)| NamedState {
            name: format!("{prefix}{name}"),
            var: var.clone(),
            elements: Vec::new(),
        }));
    }

    /// The state of parameters, of which the first has this number.
    fn moments(&self, first: usize, all: &mut Vec<NamedState>) {
        for (i, (of, cells)) in self.parameters.iter().zip(&self.state).enumerate() {
            let of = of
                .name()
                .map_or_else(|| (first + i).to_string(), |n| n.to_string());
            let cells = cells.iter().flatten().map(|(name, var)| (*name, var));
            let master = self.masters.of(i).map(|var| (MASTER, var));
            all.extend(cells.chain(master).map(|(name, var)| NamedState {
                name: format!("{name}.{of}"),
                var: var.clone(),
                elements: Vec::new(),
            }));
        }
    }
}
