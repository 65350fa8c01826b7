//! The tuner: its search, its choices, and the store, also when whoever writes it is killed.

mod choose;
mod kill;
mod made_up;
mod search;
mod store;
