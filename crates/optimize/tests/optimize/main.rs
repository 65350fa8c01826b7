//! The passes against the reference evaluation.

mod accuracy;
mod around_products;
mod branches;
mod bugs;
mod centring;
mod compare;
mod driver;
mod filetests;
mod folding;
mod generate;
mod inexact;
mod merging;
mod norms;
mod planted;
mod random;
mod rng;
mod stacking;
mod unread;
mod wrong_inexact;
mod wrong_rules;
