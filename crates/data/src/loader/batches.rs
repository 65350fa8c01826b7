//! The batches of a pass.

use super::feed::{Feed, IDLE, Recipe};
use super::workers::Crew;
use super::{DataLoader, Settings};
use crate::fault::SOURCE;
use crate::sampler::Pass;
use kiln_tensor::{Result, Tensor, on_behalf_of, profiler, realize_first};
use std::panic::Location;
use std::sync::atomic::AtomicUsize;

/// The batches of a pass; see [`DataLoader::iter`].
pub struct Batches<B>(pub(super) IndexedBatches<B>);

impl<B: Send + 'static> Iterator for Batches<B> {
    type Item = Result<B>;
    fn next(&mut self) -> Option<Result<B>> {
        Some(self.0.next()?.map(|(_, batch)| batch))
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

/// The batches of a pass with the indices of their samples; see [`DataLoader::with_indices`].
///
/// Dropping it in the middle of a pass ends the workers once they are done with their samples. A worker that takes
/// longer than a few seconds is left running.
pub struct IndexedBatches<B> {
    engine: Engine<B>,
    /// The number of batches left, if it is known.
    left: Option<usize>,
    /// The line where the loader was built.
    loc: &'static Location<'static>,
}

enum Engine<B> {
    InPlace(Feed<B>),
    Workers(Crew<B>),
}

impl<B: Send + 'static> IndexedBatches<B> {
    pub(super) fn start(
        recipe: &Recipe<B>,
        pass: Pass,
        settings: &Settings,
        left: Option<usize>,
    ) -> IndexedBatches<B> {
        let engine = match settings.workers {
            0 => Engine::InPlace(recipe(pass)),
            _ => Engine::Workers(Crew::start(recipe(pass), pass, settings)),
        };
        IndexedBatches {
            engine,
            left,
            loc: settings.loc,
        }
    }
}

impl<B: Send + 'static> Iterator for IndexedBatches<B> {
    type Item = Result<(Vec<usize>, B)>;
    fn next(&mut self) -> Option<Self::Item> {
        // A boundary between recorded computations. A value that fails stays unrealised and reports its error when it
        // is read.
        let _ = on_behalf_of(SOURCE, self.loc, || realize_first(None::<&Tensor>));
        self.left = self.left.map(|left| left.saturating_sub(1));
        profiler::waiting("DataLoader", || match &mut self.engine {
            Engine::InPlace(feed) => Some(feed.next()?(&AtomicUsize::new(IDLE))),
            Engine::Workers(crew) => crew.next(),
        })
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        // The lower bound is 0, because a failing sampler or worker ends a pass early.
        (0, self.left)
    }
}

/// Passes without end; see [`DataLoader::cycle`].
pub struct Cycle<'a, B> {
    loader: &'a DataLoader<B>,
    pass: Option<Batches<B>>,
}

impl<'a, B: Send + 'static> Cycle<'a, B> {
    pub(super) fn new(loader: &'a DataLoader<B>) -> Cycle<'a, B> {
        Cycle { loader, pass: None }
    }
}

impl<B: Send + 'static> Iterator for Cycle<'_, B> {
    type Item = Result<B>;
    fn next(&mut self) -> Option<Result<B>> {
        if let Some(batch) = self.pass.as_mut().and_then(Iterator::next) {
            return Some(batch);
        }
        self.pass.insert(self.loader.iter()).next()
    }
}
