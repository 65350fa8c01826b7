//! optimize
