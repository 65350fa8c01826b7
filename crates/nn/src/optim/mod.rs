//! Optimisers and learning-rate schedules.
