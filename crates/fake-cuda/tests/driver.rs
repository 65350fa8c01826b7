//! The driver through unmodified cudarc.

use cudarc::driver::sys;
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use std::sync::{Arc, Mutex, MutexGuard};

/// `x[i] = x[i] * factor + 1` for `i < n`, and a kernel that waits forever at a barrier of some threads.
const PTX: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 x, .param .f32 factor, .param .u32 n) {
    .reg .pred %p; .reg .f32 %f<3>; .reg .b32 %r<5>; .reg .b64 %rd<4>;
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %r3, %r0, %r1, %r2;
    ld.param.u32 %r4, [n];
    setp.ge.u32 %p, %r3, %r4;
    @%p bra done;
    ld.param.u64 %rd0, [x];
    ld.param.f32 %f0, [factor];
    mul.wide.u32 %rd1, %r3, 4;
    add.u64 %rd2, %rd0, %rd1;
    ld.global.f32 %f1, [%rd2];
    fma.rn.f32 %f2, %f1, %f0, 0f3F800000;
    st.global.f32 [%rd2], %f2;
done:
    ret;
}
.visible .entry give_up() {
    trap;
}
";

/// Faults and counters belong to the process, so tests take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(|p| p.into_inner());
    // SAFETY: no other test reads the environment: they wait for their turn.
    unsafe { std::env::set_var("KILN_FAKE_CUDA_DEVICES", "2") };
    // SAFETY: as above.
    unsafe { std::env::set_var("KILN_FAKE_CUDA_MEMORY", (64 << 20).to_string()) };
    kiln_fake_cuda::install();
    kiln_fake_cuda::reset();
    turn
}

struct Device {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    scale: CudaFunction,
    give_up: CudaFunction,
}

fn device(ordinal: usize) -> Device {
    let context = CudaContext::new(ordinal).unwrap();
    // SAFETY: each test uses one stream, or orders them itself.
    unsafe { context.disable_event_tracking() };
    let module = context.load_module(Ptx::from_src(PTX)).unwrap();
    Device {
        stream: context.new_stream().unwrap(),
        scale: module.load_function("scale").unwrap(),
        give_up: module.load_function("give_up").unwrap(),
        context,
    }
}

fn config(n: usize) -> LaunchConfig {
    LaunchConfig::for_num_elems(n as u32)
}

impl Device {
    fn scale(&self, x: &cudarc::driver::CudaSlice<f32>, factor: f32) {
        let n = x.len() as u32;
        let mut launch = self.stream.launch_builder(&self.scale);
        launch.arg(x).arg(&factor).arg(&n);
        // SAFETY: the arguments are those of the kernel.
        unsafe { launch.launch(config(x.len())) }.unwrap();
    }
}

#[test]
fn the_library_is_found_under_its_name() {
    let _turn = turn();
    // SAFETY: this opens a library that is loaded already.
    unsafe {
        assert!(sys::is_culib_present());
        let handle = libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        assert!(!handle.is_null());
    }
    assert_eq!(CudaContext::device_count().unwrap(), 2);
    let context = CudaContext::new(1).unwrap();
    assert_eq!(context.name().unwrap(), "Kiln GPU emulator 1");
    assert_eq!(context.compute_capability().unwrap(), (9, 0));
    assert!(CudaContext::new(2).is_err());
}

#[test]
fn kernels_copies_and_fills_run_in_order() {
    let _turn = turn();
    for ordinal in 0..2 {
        let d = device(ordinal);
        let x = d.stream.clone_htod(&[1f32, 2.0, 3.0]).unwrap();
        d.scale(&x, 2.0);
        d.scale(&x, 10.0);
        assert_eq!(d.stream.clone_dtoh(&x).unwrap(), [31.0, 51.0, 71.0]);
        let zeros = d.stream.alloc_zeros::<f32>(1000).unwrap();
        d.scale(&zeros, 2.0);
        assert_eq!(d.stream.clone_dtoh(&zeros).unwrap(), [1.0; 1000]);
    }
}

#[test]
fn work_waits_until_someone_waits_for_it() {
    let _turn = turn();
    let d = device(0);
    let x = d.stream.clone_htod(&[1f32]).unwrap();
    let before = kiln_fake_cuda::counters().kernels;
    d.scale(&x, 2.0);
    let event = d
        .stream
        .record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT))
        .unwrap();
    assert_eq!(kiln_fake_cuda::counters().kernels, before);
    // Another stream, which the event orders after the first.
    let other = d.context.new_stream().unwrap();
    other.wait(&event).unwrap();
    let copy = other.clone_dtod(&x).unwrap();
    assert_eq!(other.clone_dtoh(&copy).unwrap(), [3.0]);
    assert_eq!(kiln_fake_cuda::counters().kernels, before + 1);
    let later = d
        .stream
        .record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT))
        .unwrap();
    d.stream.synchronize().unwrap();
    assert!(event.elapsed_ms(&later).unwrap() >= 0.0);
}

#[test]
fn a_graph_is_captured_and_replayed() {
    let _turn = turn();
    let d = device(0);
    let x = d.stream.clone_htod(&[1f32; 100]).unwrap();
    d.stream
        .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .unwrap();
    d.scale(&x, 2.0);
    d.scale(&x, 3.0);
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = d.stream.end_capture(flags).unwrap().unwrap();
    assert_eq!(d.stream.clone_dtoh(&x).unwrap(), [1.0; 100]);
    graph.launch().unwrap();
    graph.launch().unwrap();
    assert_eq!(d.stream.clone_dtoh(&x).unwrap(), [64.0; 100]);
}

/// Calls a function with the parameters of a node that scales one element.
fn with_node<T>(
    d: &Device,
    place: u64,
    mut factor: f32,
    f: impl FnOnce(&sys::CUDA_KERNEL_NODE_PARAMS) -> T,
) -> T {
    let (mut address, mut n) = (place, 1u32);
    let mut arguments: [*mut std::ffi::c_void; 3] =
        [&raw mut address as _, &raw mut factor as _, &raw mut n as _];
    // SAFETY: all its fields may be 0.
    let mut params: sys::CUDA_KERNEL_NODE_PARAMS = unsafe { std::mem::zeroed() };
    params.func = d.scale.cu_function();
    (params.gridDimX, params.gridDimY, params.gridDimZ) = (1, 1, 1);
    (params.blockDimX, params.blockDimY, params.blockDimZ) = (1, 1, 1);
    params.kernelParams = arguments.as_mut_ptr();
    f(&params)
}

#[test]
fn nodes_of_a_graph_get_new_arguments() {
    let _turn = turn();
    let d = device(0);
    let [x, y] = [1f32, 5.0].map(|v| d.stream.clone_htod(&[v]).unwrap());
    use cudarc::driver::DevicePtr;
    let (x_address, _guard) = x.device_ptr(&d.stream);
    let (y_address, _guard) = y.device_ptr(&d.stream);
    assert_ne!(x_address, y_address);
    d.context.bind_to_thread().unwrap();
    let stream = d.stream.cu_stream();
    let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mut node = std::ptr::null_mut();
    // SAFETY: the arguments are those of the functions.
    unsafe {
        sys::cuGraphCreate(&mut graph, 0).result().unwrap();
        let add = |params: &_| {
            sys::cuGraphAddKernelNode_v2(&mut node, graph, std::ptr::null(), 0, params)
        };
        with_node(&d, x_address, 2.0, add).result().unwrap();
        sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0)
            .result()
            .unwrap();
        sys::cuGraphLaunch(executable, stream).result().unwrap();
        let change = |params: &_| sys::cuGraphExecKernelNodeSetParams_v2(executable, node, params);
        with_node(&d, y_address, 7.0, change).result().unwrap();
        sys::cuGraphLaunch(executable, stream).result().unwrap();
        sys::cuGraphExecDestroy(executable).result().unwrap();
        sys::cuGraphDestroy(graph).result().unwrap();
    }
    // The first launch was queued with the old arguments.
    assert_eq!(d.stream.clone_dtoh(&x).unwrap(), [3.0]);
    assert_eq!(d.stream.clone_dtoh(&y).unwrap(), [36.0]);
}

#[test]
fn kernels_of_a_graph_that_meet_are_a_fault_unless_one_depends_on_the_other() {
    const INVALID: sys::CUresult = sys::CUresult::CUDA_ERROR_INVALID_VALUE;
    let _turn = turn();
    use cudarc::driver::DevicePtr;
    // The last node works on the array that the first wrote, or on its own; it depends on the first through a node that
    // works on a third array, or directly.
    for (meets, depends, through) in [
        (true, false, false),
        (true, true, false),
        (true, true, true),
        (false, false, false),
    ] {
        let d = device(0);
        let [x, y, z] = [1f32, 5.0, 9.0].map(|v| d.stream.clone_htod(&[v]).unwrap());
        d.stream.synchronize().unwrap();
        let place = |array: &cudarc::driver::CudaSlice<f32>| array.device_ptr(&d.stream).0;
        let places = [place(&x), place(if meets { &x } else { &y })];
        d.context.bind_to_thread().unwrap();
        // SAFETY: the arguments are those of the functions.
        let launched = unsafe {
            let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
            sys::cuGraphCreate(&mut graph, 0).result().unwrap();
            let mut before = Vec::new();
            let add = |address, factor, before: &[sys::CUgraphNode]| {
                let mut node = std::ptr::null_mut();
                let added = with_node(&d, address, factor, |params| {
                    let (list, count) = (before.as_ptr(), before.len());
                    sys::cuGraphAddKernelNode_v2(&mut node, graph, list, count, params)
                });
                added.result().map(|()| node)
            };
            for (address, factor) in places.into_iter().zip([2f32, 3.0]) {
                if !before.is_empty() {
                    let refused = add(address, factor, &[&before[..], &before].concat());
                    assert_eq!(refused.unwrap_err().0, INVALID, "a dependency twice");
                }
                let mut node = add(address, factor, &before).unwrap();
                if through && before.is_empty() {
                    node = add(place(&z), 1.0, &[node]).unwrap();
                }
                before = Vec::from_iter(depends.then_some(node));
            }
            sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0)
                .result()
                .unwrap();
            sys::cuGraphLaunch(executable, d.stream.cu_stream())
                .result()
                .unwrap();
            let synchronized = d.stream.synchronize();
            sys::cuGraphExecDestroy(executable).result().unwrap();
            sys::cuGraphDestroy(graph).result().unwrap();
            synchronized
        };
        assert_eq!(launched.is_err(), meets && !depends, "{meets} {depends}");
        match meets && !depends {
            true => {
                let fault = kiln_fake_cuda::last_fault().unwrap();
                assert!(fault.contains("are unordered"), "{fault}");
                kiln_fake_cuda::reset();
            }
            false => {
                let want = if meets { [10.0] } else { [3.0] };
                assert_eq!(d.stream.clone_dtoh(&x).unwrap(), want);
            }
        }
    }
}

#[test]
fn waiting_breaks_a_capture() {
    let _turn = turn();
    let d = device(0);
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    d.stream.begin_capture(mode).unwrap();
    let error = d.stream.synchronize().unwrap_err();
    assert_eq!(
        error.0,
        sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    );
    let error = d
        .stream
        .end_capture(sys::CUgraphInstantiate_flags(0))
        .err()
        .unwrap();
    assert_eq!(
        error.0,
        sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    );
}

#[test]
fn memory_runs_out_and_comes_back() {
    let _turn = turn();
    let d = device(0);
    let half = 40 << 20;
    let first = d.stream.alloc_zeros::<u8>(half).unwrap();
    let error = d.stream.alloc_zeros::<u8>(half).unwrap_err();
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    drop(first);
    // Queued frees are waited for.
    let second = d.stream.alloc_zeros::<u8>(half).unwrap();
    drop(second);
    d.stream.synchronize().unwrap();
    let (free, total) = cudarc::driver::result::mem_get_info().unwrap();
    assert_eq!((free, total), (64 << 20, 64 << 20));
}

#[test]
fn a_fault_is_reported_when_it_is_waited_for() {
    let _turn = turn();
    let d = device(0);
    let x = d.stream.clone_htod(&[1f32; 4]).unwrap();
    let (factor, n) = (1f32, 5u32);
    let mut launch = d.stream.launch_builder(&d.scale);
    launch.arg(&x).arg(&factor).arg(&n);
    // SAFETY: deliberately one element too many; the emulator notices.
    unsafe { launch.launch(config(5)) }.unwrap();
    let error = d.stream.synchronize().unwrap_err();
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    let fault = kiln_fake_cuda::last_fault().unwrap();
    for part in [
        "OutOfBounds in kernel scale",
        "thread (4, 0, 0)",
        "ld.global.f32",
    ] {
        assert!(fault.contains(part), "{fault}");
    }
    // The error stays, as after a fault of hardware.
    assert!(d.stream.synchronize().is_err());
    kiln_fake_cuda::reset();
    d.stream.synchronize().unwrap();

    // SAFETY: the kernel has no arguments.
    unsafe { d.stream.launch_builder(&d.give_up).launch(config(1)) }.unwrap();
    let error = d.stream.synchronize().unwrap_err();
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_LAUNCH_FAILED);
    kiln_fake_cuda::reset();
}

#[test]
fn what_is_no_ptx_is_refused() {
    let _turn = turn();
    let d = device(0);
    let error = d
        .context
        .load_module(Ptx::from_src("\x7fELF machine code"))
        .err()
        .unwrap();
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    let unknown = PTX.replace("trap;", "frobnicate.u32;");
    let error = d.context.load_module(Ptx::from_src(unknown)).err().unwrap();
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_INVALID_PTX);
}

/// Machine code for sm_90 without code, with this text in a section of this type.
fn cubin(kind: u32, text: &[u8]) -> Vec<u8> {
    let mut image = vec![0; 64 + 2 * 64];
    let numbers: [(usize, &[u8]); 10] = [
        (0, b"\x7fELF\x02\x01\x01\x41\x08"),
        (18, &[190]),
        (40, &[64]), // the table of sections: one that is none, and the text's
        (48, &[4, 90, 0, 6]),
        (58, &[64]),
        (60, &[2]),
        (128 + 4, &kind.to_le_bytes()),
        (128 + 24, &[192]),
        (128 + 32, &text.len().to_le_bytes()),
        (128 + 48, &[1]),
    ];
    for (at, bytes) in numbers {
        image[at..at + bytes.len()].copy_from_slice(bytes);
    }
    image.extend(text);
    image
}

/// The type of the section in which Kiln's engine puts PTX.
const HOLDS_PTX: u32 = 0x8058_5450;

#[test]
fn machine_code_runs_as_the_ptx_that_it_holds() {
    let _turn = turn();
    let image = cubin(HOLDS_PTX, format!("{PTX}\0").as_bytes());
    let file = std::env::temp_dir().join(format!("kiln-fake-{}.cubin", std::process::id()));
    std::fs::write(&file, &image).unwrap();
    let d = device(0);
    for ptx in [Ptx::from_binary(image), Ptx::from_file(&file)] {
        let module = d.context.load_module(ptx).unwrap();
        let scale = module.load_function("scale").unwrap();
        let d = Device { scale, ..device(0) };
        let x = d.stream.clone_htod(&[1f32, 2.0]).unwrap();
        d.scale(&x, 2.0);
        assert_eq!(d.stream.clone_dtoh(&x).unwrap(), [3.0, 5.0]);
        let (mut offset, mut size) = (0, 0);
        // SAFETY: both places are writable.
        let told =
            unsafe { sys::cuFuncGetParamInfo(d.scale.cu_function(), 1, &mut offset, &mut size) };
        told.result().unwrap();
        assert_eq!((offset, size), (8, 4));
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn machine_code_that_is_no_such_is_refused() {
    let _turn = turn();
    let d = device(0);
    let text = format!("{PTX}\0");
    let whole = cubin(HOLDS_PTX, text.as_bytes());
    let status = |ptx: Ptx| d.context.load_module(ptx).err().unwrap().0;
    let changed = |at: usize, byte: u8| {
        let mut image = whole.clone();
        image[at] = byte;
        image
    };
    // Machine code for sm_80, code of a CPU, and machine code without PTX.
    for image in [changed(49, 80), changed(18, 62), cubin(1, text.as_bytes())] {
        let refused = status(Ptx::from_binary(image));
        assert_eq!(refused, sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    }
    // Text without an end or with two, section headers of another size, and sections at no address.
    let texts = [PTX.to_string(), format!("{PTX}\0\0")];
    let texts = texts.iter().map(|text| cubin(HOLDS_PTX, text.as_bytes()));
    let tables = [changed(58, 63), changed(47, 255), changed(128 + 31, 255)];
    for image in texts.chain(tables) {
        let refused = status(Ptx::from_binary(image));
        assert_eq!(refused, sys::CUresult::CUDA_ERROR_INVALID_IMAGE);
    }
    // A file has a known length.
    let file = std::env::temp_dir().join(format!("kiln-fake-cut-{}.cubin", std::process::id()));
    for len in 4..whole.len() {
        // Lengths in steps, but every length around the headers.
        if len < 260 || len % 100 == 0 || len + 1 == whole.len() {
            std::fs::write(&file, &whole[..len]).unwrap();
            status(Ptx::from_file(&file));
        }
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn pinned_memory_is_read_when_the_copy_runs() {
    let _turn = turn();
    let d = device(0);
    // SAFETY: the memory is written before it is used.
    let mut pinned = unsafe { d.context.alloc_pinned::<f32>(2) }.unwrap();
    pinned.as_mut_slice().unwrap().copy_from_slice(&[1.0, 2.0]);
    let mut x = d.stream.alloc_zeros::<f32>(2).unwrap();
    let (to, len) = {
        use cudarc::driver::DevicePtrMut;
        let (address, _guard) = x.device_ptr_mut(&d.stream);
        (address, 8)
    };
    let host = pinned.as_mut_ptr().unwrap();
    // SAFETY: the memory stays alive until the stream is waited for; it is changed in between on purpose.
    unsafe {
        sys::cuMemcpyHtoDAsync_v2(to, host as *const _, len, d.stream.cu_stream())
            .result()
            .unwrap();
        host.write(5.0);
    }
    assert_eq!(d.stream.clone_dtoh(&x).unwrap(), [5.0, 2.0]);
}
