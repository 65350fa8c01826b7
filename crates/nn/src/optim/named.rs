//! The state of an optimiser, by name.

use super::Optimizer;
use super::group::Group;
use super::master::MASTER;
use kiln_tensor::Var;

/// A cell of an optimiser's state; see [`Optimizer::named_state`].
#[derive(Clone, Debug)]
pub struct NamedState {
    /// Its name.
    pub name: String,
    /// The cell.
    pub var: Var,
    /// The names of its elements, where each is a number of its own: `lr`, `beta1`, …
    pub elements: Vec<String>,
}

impl Optimizer {
    /// The cells of everything that steps read or write besides the parameters. Each group has `numbers` (its
    /// hyperparameters, f64), and `step` and the other counts of each parameter (f64, in the order of the parameters).
    /// Each parameter has its moments, such as `exp_avg.fc.weight`, and its master weight (`master_param`). These end
    /// with the parameter's name in its module, or with its number if it has none. Where there are several groups, the
    /// names of a group's cells begin with `groups.0.`.
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
    fn own_state(&self, prefix: &str, states: &mut Vec<NamedState>) {
        let numbers = self.values.iter();
        states.push(NamedState {
            name: format!("{prefix}numbers"),
            var: self.numbers().clone(),
            elements: numbers.map(|(name, _)| name.to_string()).collect(),
        });
        let counts = self.counts.iter();
        states.extend(counts.map(|(name, var)| NamedState {
            name: format!("{prefix}{name}"),
            var: var.clone(),
            elements: Vec::new(),
        }));
    }

    /// Appends the state of the parameters. The first of them has number `first_index`.
    fn moments(&self, first_index: usize, states: &mut Vec<NamedState>) {
        for (i, (parameter, cells)) in self.parameters.iter().zip(&self.state).enumerate() {
            let owner = parameter
                .name()
                .map_or_else(|| (first_index + i).to_string(), |n| n.to_string());
            let cells = cells.iter().flatten().map(|(name, var)| (*name, var));
            let master = self.masters.get(i).map(|var| (MASTER, var));
            states.extend(cells.chain(master).map(|(name, var)| NamedState {
                name: format!("{name}.{owner}"),
                var: var.clone(),
                elements: Vec::new(),
            }));
        }
    }
}
