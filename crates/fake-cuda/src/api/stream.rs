//! Streams and their capture.

use crate::abi::Out;
use crate::driver::{driver, is_null_stream};
use crate::queue::{Capture, Stream, capture_mode};
use crate::status::{
    CAPTURE_INVALIDATED, CAPTURE_ISOLATION, CAPTURE_UNJOINED, CAPTURE_UNMATCHED,
    CAPTURE_UNSUPPORTED, INVALID_HANDLE, INVALID_VALUE,
};
use crate::work::Work;
use std::ffi::c_uint;

/// `CU_STREAM_NON_BLOCKING`
const NON_BLOCKING: c_uint = 1;

exports! {
    fn cuStreamCreate(stream: Out<usize>, flags: c_uint) {
        let driver = driver();
        let device = driver.current_device()?;
        let mut state = driver.state();
        let handle = state.new_handle();
        let blocking = flags & NON_BLOCKING == 0;
        state.streams.insert(handle, Stream { device, blocking, ..Stream::default() });
        stream.set(handle)
    }

    fn cuStreamDestroy_v2(stream: usize) {
        let driver = driver();
        if driver.state().stream(stream)?.capture.is_some() {
            return Err(CAPTURE_UNSUPPORTED.into());
        }
        // Queued work is still executed.
        let drained = driver.drain(stream);
        driver.state().streams.remove(&stream);
        drained
    }

    fn cuStreamSynchronize(stream: usize) {
        let driver = driver();
        let stream = driver.stream(stream)?;
        driver.state().check_not_capturing(stream)?;
        driver.drain(stream)?;
        let mut state = driver.state();
        let device = state.stream(stream)?.device;
        state.accounts.synchronised(device);
        Ok(())
    }

    fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) {
        let driver = driver();
        let stream = driver.stream(stream)?;
        let mut state = driver.state();
        let waited = state.events.get(&event).ok_or(INVALID_HANDLE)?;
        let (recorded, captured) = (waited.recorded, waited.captured);
        let own = state.stream(stream)?.capture;
        match (own, captured) {
            (_, Some((id, source))) => {
                let alive = state.captures.contains_key(&id);
                if !alive || own.is_some_and(|own| own != id) {
                    return Err(CAPTURE_ISOLATION.into());
                }
                // The stream joins the capture, or merges the other stream's work into it.
                state.stream(source)?.unjoined = false;
                let joining = state.stream(stream)?;
                joining.unjoined |= joining.capture.is_none();
                joining.capture = Some(id);
                Ok(())
            }
            (Some(id), None) => {
                state.captures.get_mut(&id).ok_or(INVALID_HANDLE)?.broken = true;
                Err(CAPTURE_ISOLATION.into())
            }
            (None, None) => {
                drop(state);
                driver.enqueue(stream, Work::Wait(event, recorded))
            }
        }
    }

    fn cuStreamBeginCapture_v2(stream: usize, mode: c_uint) {
        let driver = driver();
        let stream = driver.stream(stream)?;
        let mode = capture_mode(mode)?;
        let mut state = driver.state();
        state.check_healthy()?;
        if is_null_stream(stream) || state.stream(stream)?.capture.is_some() {
            return Err(CAPTURE_UNSUPPORTED.into());
        }
        let (id, graph) = (state.new_handle() as u64, state.new_handle());
        let thread = std::thread::current().id();
        let capture =
            Capture { origin: stream, mode, thread, graph, nodes: Vec::new(), broken: false };
        state.captures.insert(id, capture);
        state.stream(stream)?.capture = Some(id);
        Ok(())
    }

    fn cuStreamEndCapture(stream: usize, graph: Out<usize>) {
        let driver = driver();
        let stream = driver.stream(stream)?;
        let mut state = driver.state();
        let id = state.stream(stream)?.capture.ok_or(INVALID_VALUE)?;
        let origin = state.captures.get(&id).ok_or(INVALID_HANDLE)?.origin;
        if origin != stream {
            return Err(CAPTURE_UNMATCHED.into());
        }
        let capture = state.captures.remove(&id).ok_or(INVALID_HANDLE)?;
        let mut unjoined = false;
        for (&handle, other) in &mut state.streams {
            if other.capture == Some(id) {
                unjoined |= handle != stream && other.unjoined;
                other.capture = None;
                other.unjoined = false;
            }
        }
        graph.set(0)?;
        if capture.broken {
            return Err(CAPTURE_INVALIDATED.into());
        }
        if unjoined {
            return Err(CAPTURE_UNJOINED.into());
        }
        state.graphs.insert(capture.graph, capture.nodes);
        graph.set(capture.graph)
    }
}
