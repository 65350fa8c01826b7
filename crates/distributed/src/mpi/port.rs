//! The way to the thread that calls MPI.

use super::engine::Engine;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// A request to the engine's thread.
pub(super) type Job = Box<dyn FnOnce(&mut Engine) + Send>;

/// A way to the engine's thread.
#[derive(Clone)]
pub(super) struct Port {
    jobs: Sender<Job>,
    /// The number of threads that wait for a result.
    pub waiting: Arc<AtomicUsize>,
}

/// The result of a job, once it is there.
pub(super) struct Reply<T> {
    result: Receiver<Result<T, String>>,
    waiting: Arc<AtomicUsize>,
}

fn ended_error() -> String {
    "communication has ended".into()
}

impl<T> Reply<T> {
    /// Waits for the result.
    ///
    /// # Errors
    /// The job's, or if communication has ended.
    pub fn wait(self) -> Result<T, String> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let result = self.result.recv().unwrap_or_else(|_| Err(ended_error()));
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        result
    }
}

impl Port {
    /// Returns the port, and the receiver of what is posted.
    pub fn new() -> (Port, Receiver<Job>) {
        let (jobs, received) = channel();
        let waiting = Arc::default();
        (Port { jobs, waiting }, received)
    }

    /// Has a function run on the engine's thread, after those posted before.
    ///
    /// # Errors
    /// If communication has ended.
    pub fn post<T: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Engine) -> Result<T, String> + Send + 'static,
    ) -> Result<Reply<T>, String> {
        let (reply, result) = channel();
        let job: Job = Box::new(move |engine| {
            // Nobody waits any more after an error of another step.
            let _ = reply.send(f(engine));
        });
        self.jobs.send(job).map_err(|_| ended_error())?;
        let waiting = self.waiting.clone();
        Ok(Reply { result, waiting })
    }

    /// Runs a function on the engine's thread and waits for its result.
    ///
    /// # Errors
    /// Its error, or if communication has ended.
    pub fn ask<T: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Engine) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        self.post(f)?.wait()
    }

    /// Waits for what is being sent, and ends MPI.
    ///
    /// # Errors
    /// If something is not received in time, or after a fault.
    pub fn close(&self) -> Result<(), String> {
        self.ask(Engine::close)
    }
}
