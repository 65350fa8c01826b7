//! The tuner: its search, its choices, and the store, also when a process that writes it is killed.

mod choose;
mod kill;
mod made_up;
mod search;
mod store;
