//! Bugs seeded into the sample kernels: the emulator finds each and reports its place.

use crate::kernels;
use crate::support::{Gpu, Random};
use half::bf16;
use kiln_gpu_emulator::{Fault, FaultKind};

/// A bug: `wrong` in place of `right`.
pub struct Bug {
    pub name: &'static str,
    pub kernel: &'static str,
    pub right: &'static str,
    pub wrong: &'static str,
    /// The kinds of fault that it may be found as, depending on which warp comes first.
    found: &'static [FaultKind],
}

macro_rules! bugs {
    ($($name:ident in $kernel:ident, $($found:ident)|+: $right:literal => $wrong:literal;)*) => {
        /// The bugs.
        pub const BUGS: &[Bug] = &[$(Bug {
            name: stringify!($name),
            kernel: stringify!($kernel),
            right: $right,
            wrong: $wrong,
            found: &[$(FaultKind::$found),+],
        }),*];
    };
}

bugs! {
    no_barrier_before_reading in softmax, SharedRace | Uninitialised:
        "red[wid]=m; __syncthreads();" => "red[wid]=m;";
    no_barrier_before_reuse in softmax, SharedRace:
        "m=wmax(m); __syncthreads();" => "m=wmax(m);";
    row_overrun in softmax, OutOfBounds | GlobalRace:
        "i<cols;i+=blockDim.x) w[i]=" => "i<=cols;i+=blockDim.x) w[i]=";
    unwritten_partial_sums in softmax, Uninitialised:
        "s = lane<nw? red[lane] : 0.f;" => "s = red[lane];";
    shuffle_of_half_a_warp in softmax, Divergence:
        "s=wsum(s); if(lane==0) red[wid]=s;" => "if(lane<16) s=wsum(s); if(lane==0) red[wid]=s;";
    barrier_of_one_lane in softmax, Divergence:
        "red[wid]=s; __syncthreads();" => "{ red[wid]=s; __syncthreads(); }";
    barrier_of_some_warps in softmax, Divergence:
        "if(lane==0) red[wid]=s; __syncthreads();" =>
        "if(lane==0) red[wid]=s; if(wid<4) __syncthreads(); __syncthreads();";
    no_barrier_after_loading in matmul_smem, SharedRace | Uninitialised:
        "B[(size_t)(k0+k)*N+col0+c]:0.f; }\n    __syncthreads();" =>
        "B[(size_t)(k0+k)*N+col0+c]:0.f; }";
    no_barrier_before_the_next_tile in matmul_smem, SharedRace:
        "acc[i][j]+=av[i]*bv[j]; }\n    __syncthreads();" => "acc[i][j]+=av[i]*bv[j]; }";
    no_row_check in matmul_smem, OutOfBounds:
        "As[k][r]=(row0+r<M&&k0+k<K)?" => "As[k][r]=(k0+k<K)?";
    half_a_tile in matmul_smem, Uninitialised:
        "i<BK*BN;i+=256" => "i<BK*BN/2;i+=256";
    tile_too_small in matmul_smem, OutOfBounds:
        "__shared__ float Bs[BK][BN];" => "__shared__ float Bs[BK-1][BN];";
    misaligned_vector in matmul_smem, Misaligned:
        "*(float4*)&As[k][ty*4];" => "*(float4*)&As[k][ty*4+1];";
    no_wait_for_copies in mma_bf16, MissingWait:
        "waitg<1>(); } else waitg<0>();" => "waitg<2>(); } else waitg<1>();";
    no_barrier_after_waiting in mma_bf16, SharedRace | MissingWait | Uninitialised:
        "else waitg<0>();\n    __syncthreads();" => "else waitg<0>();";
    no_barrier_before_overwriting in mma_bf16, SharedRace | MissingWait | Uninitialised:
        "    __syncthreads(); s^=1;" => "    s^=1;";
    misaligned_copy in mma_bf16, Misaligned:
        "#define LDA 40" => "#define LDA 36";
    wait_for_the_wrong_phase in wgmma, MissingWait | Uninitialised | Deadlock:
        "mbar_wait(b0+8*s,(k>>1)&1);" => "mbar_wait(b0+8*s,((k>>1)&1)^1);";
    too_few_bytes_expected in wgmma, Deadlock:
        "mbar_expect(b,(64+128)*64*2);" => "mbar_expect(b,128*64*2);";
    no_wait_for_products in wgmma, MissingWait:
        "asm volatile(\"wgmma.wait_group.sync.aligned 0;\":::\"memory\");" => "";
    no_fence_before_products in warpgroups, MissingFence:
        "      asm volatile(\"wgmma.fence.sync.aligned;\":::\"memory\");" => "";
    no_fence_after_initialising in warpgroups, MissingFence:
        "asm volatile(\"fence.mbarrier_init.release.cluster;\":::\"memory\");" => "";
    no_barrier_after_initialising in warpgroups, SharedRace | Misuse | Uninitialised:
        "  __syncthreads(); // after" => "  // after";
    released_before_products_end in warpgroups, SharedRace | MissingWait:
        "      asm volatile(\"wgmma.wait_group.sync.aligned 0;\":::\"memory\");\n      if(threadIdx.x%128==0) arrive(sptr(empty+st)); // released" =>
        "      if(threadIdx.x%128==0) arrive(sptr(empty+st)); // released\n      asm volatile(\"wgmma.wait_group.sync.aligned 0;\":::\"memory\");";
    released_by_one_warpgroup in warpgroups, SharedRace | MissingWait | Misuse | Deadlock:
        "init(sptr(empty+i),2);" => "init(sptr(empty+i),1);";
    no_wait_for_an_empty_stage in warpgroups, SharedRace | MissingWait:
        "      wait(sptr(empty+st),(s/ST&1)^1);" => "";
    no_barrier_of_the_cluster_at_its_start in clusters, SharedRace | Misuse | Uninitialised | MissingFence:
        "  meet(); // after" => "  __syncthreads(); // after";
    no_barrier_of_the_cluster_at_its_end in clusters, Misuse:
        "  meet(); // before the end\n" => "";
    released_in_one_block in clusters, SharedRace | MissingWait | Misuse:
        "arrive(sptr(empty+st),threadIdx.x%128);" => "arrive(sptr(empty+st),rank);";
    both_halves_in_one_place in clusters, SharedRace | MissingWait:
        "at+AB+rank*BB/2" => "at+AB";
    copied_to_one_block in clusters, Deadlock:
        "[%4], 3;" => "[%4], 1;";
    released_before_the_other_block_multiplies in clusters, SharedRace | MissingWait | Misuse | Deadlock:
        "init(sptr(empty+i),4);" => "init(sptr(empty+i),2);";
    no_fence_before_a_store in stores, MissingFence:
        "    asm volatile(\"fence.proxy.async.shared::cta;\":::\"memory\");" => "";
    no_barrier_before_a_store in stores, SharedRace | Uninitialised | MissingFence:
        "    __syncthreads(); // before" => "    // before";
    overwritten_before_it_is_stored in stores, MissingWait:
        "wait_group.read 1;" => "wait_group.read 2;";
    no_barrier_after_waiting_for_stores in stores, MissingWait | SharedRace:
        "    __syncthreads(); // after" => "    // after";
    stores_not_waited_for in stores, MissingWait:
        "wait_group.read 0;" => "wait_group.read 1;";
    every_lane_releases in warpgroups, Misuse | Deadlock:
        "if(threadIdx.x%128==0) arrive(sptr(empty+st)); // released" => "arrive(sptr(empty+st)); // released";
    products_in_no_group in warpgroups, MissingWait | Deadlock:
        "      asm volatile(\"wgmma.commit_group.sync.aligned;\":::\"memory\");\n" => "";
    wait_for_the_products_before in warpgroups, MissingWait | SharedRace:
        "wgmma.wait_group.sync.aligned 0;" => "wgmma.wait_group.sync.aligned 1;";
    phase_that_never_changes in warpgroups, MissingWait | SharedRace | Misuse | Deadlock:
        "wait(sptr(full+st),s/ST&1);" => "wait(sptr(full+st),0);";
    misaligned_tile in warpgroups, Misaligned:
        "u32 at=sptr(smem)+st*(AB+BB);" => "u32 at=sptr(smem)+st*(AB+BB)+64;";
    matrix_of_another_stage in warpgroups, SharedRace | MissingWait:
        "bt=sptr(smem)+st*(AB+BB)+AB;" => "bt=sptr(smem)+AB;";
    matrix_outside_of_shared_memory in warpgroups, OutOfBounds | Uninitialised:
        "desc(bt+j*32)" => "desc(bt+j*65536)";
    products_of_half_a_warpgroup in warpgroups, Divergence | Deadlock:
        "multiply(c,desc(at+j*32)" => "if(threadIdx.x%128<64) multiply(c,desc(at+j*32)";
    tensor_map_in_local_memory in warpgroups, OutOfBounds | Misuse:
        "const __grid_constant__ TMap tb" => "const TMap tb";
    release_beyond_the_cluster in clusters, OutOfBounds | Misuse:
        "if(threadIdx.x%128<2)" => "if(threadIdx.x%128<3)";
    no_wait_at_the_end_of_the_cluster in clusters, Misuse:
        "  meet(); // before the end\n" => "  asm volatile(\"barrier.cluster.arrive.release;\":::\"memory\"); // before the end\n";
    bytes_expected_by_one_block in clusters, Deadlock | Misuse:
        "expect(sptr(full+st),AB+BB);" => "if(rank==0) expect(sptr(full+st),AB+BB);";
    bulk_copy_of_odd_bytes in units, Misaligned:
        "from+i*256,1024," => "from+i*256,1020,";
    bulk_copy_to_an_odd_address in units, Misaligned:
        "sptr(in+i*256)" => "sptr(in+i*256+1)";
    bulk_copies_that_overlap in units, SharedRace | MissingWait:
        "sptr(in+i*256)" => "sptr(in+i*128)";
    bulk_copy_beyond_shared_memory in units, OutOfBounds:
        "sptr(in+i*256)" => "sptr(in+i*25600)";
    bulk_copy_beyond_its_source in units, OutOfBounds:
        "from+i*256,1024," => "from+i*1024,1024,";
    bulk_copy_in_flight_at_the_end in units, MissingWait:
        "if(t==0){ atomicAdd(total,sum);" =>
        "if(t==0){ expect(sptr(full),1024); bulk(sptr(in),from,1024,sptr(full)); atomicAdd(total,sum);";
    no_wait_for_a_bulk_copy in units, MissingWait | Uninitialised:
        "    wait(sptr(full+1),0);\n" => "";
    too_many_bytes_expected in units, Deadlock:
        "expect(sptr(full+i),1024);" => "expect(sptr(full+i),2048);";
    bytes_expected_without_an_arrival in units, Deadlock:
        "expect(sptr(full+i),1024);" =>
        "asm volatile(\"mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 1024;\"::\"r\"(sptr(full+i)):\"memory\");";
    initialised_by_every_warp in units, SharedRace | Misuse:
        "  if(t==0){\n    init(" => "  if(lane==0){\n    init(";
    barrier_of_another_number in units, Deadlock:
        "leave(1,128); // makers" => "leave(2,128); // makers";
    barrier_beyond_the_last in units, Misuse:
        "meet(1,128); // takers" => "meet(16,128); // takers";
    barrier_of_too_few_threads in units, SharedRace | Uninitialised | Misuse | Deadlock:
        "meet(1,128); // takers" => "meet(1,64); // takers";
    barrier_of_part_of_a_warp in units, Misuse:
        "leave(1,128); // makers" => "leave(1,112); // makers";
    arrival_before_the_data in units, SharedRace | Uninitialised:
        "    for(int i=t+128;i<256;i+=64) pairs[i]=in[2*i]+in[2*i+1];\n    leave(1,128); // makers" =>
        "    leave(1,128); // makers\n    for(int i=t+128;i<256;i+=64) pairs[i]=in[2*i]+in[2*i+1];";
    copies_in_no_group in units, MissingWait:
        "  asm volatile(\"cp.async.commit_group;\":::\"memory\"); // of single numbers\n" => "";
    matrices_in_one_place in units, SharedRace | Uninitialised:
        "sptr(&matrix[w][lane%8][0])),\"r\"(a)" => "sptr(&matrix[0][lane%8][0])),\"r\"(a)";
    misaligned_matrix in units, Misaligned:
        "\"=r\"(b):\"r\"(sptr(&matrix[w][lane%8][0]))" => "\"=r\"(b):\"r\"(sptr(&matrix[w][lane%8][1]))";
    matrix_load_of_half_a_warp in units, Divergence:
        "  asm volatile(\"ldmatrix" => "  if(lane<16) asm volatile(\"ldmatrix";
    plain_sum_beside_atomics in units, SharedRace:
        "  atomicAdd(&sum," => "  if(t==0) sum+=1.f;\n  atomicAdd(&sum,";
    plain_counter_of_all_blocks in units, GlobalRace:
        "atomicAdd(count,1u);" => "*count+=1u;";
    read_of_another_block in units, GlobalRace | Uninitialised:
        "y[blockIdx.x*256+i]=pairs[i];" => "y[blockIdx.x*256+i]=pairs[i]+y[(blockIdx.x+1)%gridDim.x*256+i];";
    no_barrier_before_atomics in misc, SharedRace | Uninitialised:
        "if(t<64) sh[t]=0; __syncthreads();" => "if(t<64) sh[t]=0;";
    unwritten_counters in misc, Uninitialised:
        "if(t<64) sh[t]=0;" => "if(t<32) sh[t]=0;";
    local_overrun in misc, OutOfBounds:
        "int q=tmp[(v&7)];" => "int q=tmp[(v&15)];";
    no_bounds_check in ew, OutOfBounds:
        "i < n;" => "i <= n;";
    blocks_that_overlap in ew, GlobalRace:
        "blockIdx.x*blockDim.x+threadIdx.x;" => "blockIdx.x*(blockDim.x-1)+threadIdx.x;";
}

/// Runs a kernel, where possible at a size that is not a multiple of its tiles.
fn run(gpu: &mut Gpu, kernel: &str) -> Result<(), Box<Fault>> {
    let random = &mut Random::new();
    let number = |gpu: &mut Gpu, n: usize| {
        gpu.number((n as i32).to_le_bytes());
    };
    match kernel {
        "softmax" => {
            gpu.array(&random.floats(4 * 301, 5.0));
            gpu.empty::<f32>(4 * 301);
            number(gpu, 301);
            gpu.run("softmax", [4, 1, 1], 256, 0)?;
        }
        "matmul_smem" => {
            let [m, n, k] = [70, 70, 40];
            gpu.array(&random.floats(m * k, 1.0));
            gpu.array(&random.floats(k * n, 1.0));
            gpu.empty::<f32>(m * n);
            for size in [m, n, k] {
                number(gpu, size);
            }
            gpu.run("matmul_smem", [2, 2, 1], 256, 0)?;
        }
        "mma_bf16" => {
            let [m, n, k] = [64, 64, 96];
            gpu.array(&vec![bf16::ONE; m * k]);
            gpu.array(&vec![bf16::ONE; k * n]);
            gpu.empty::<f32>(m * n);
            for size in [m, n, k] {
                number(gpu, size);
            }
            let shared = 2 * 64 * 40 * 2 + 2 * 32 * 72 * 2;
            gpu.run("mma_bf16", [1, 1, 1], 128, shared)?;
        }
        "wgmma" => drop(kernels::run_warpgroup_product(gpu, random)?),
        "warpgroups" => drop(kernels::run_warpgroups(gpu, random)?),
        "clusters" => drop(kernels::run_clusters(gpu, random)?),
        "stores" => drop(kernels::run_stores(gpu, random)?),
        "units" => {
            gpu.array(&random.floats(2 * 512, 1.0));
            gpu.empty::<f32>(2 * 256);
            gpu.array(&[0u32]);
            gpu.array(&[0f32]);
            gpu.run("units", [2, 1, 1], 128, 0)?;
        }
        "misc" => {
            let n = 300;
            gpu.array(&random.integers(n, 1000));
            number(gpu, n);
            gpu.array(&[0i32; 64]);
            gpu.array(&[0f32]);
            gpu.array(&[0u64]);
            gpu.array(&[0f64]);
            gpu.array(&[0u32]);
            gpu.empty::<u8>(n);
            gpu.empty::<i32>(n);
            gpu.run("misc", [2, 1, 1], 256, 0)?;
        }
        _ => {
            let n = 1000;
            for _ in 0..3 {
                gpu.array(&random.floats(n, 1.0));
            }
            gpu.empty::<f32>(n);
            number(gpu, n);
            gpu.run("ew", [2, 1, 1], 256, 0)?;
        }
    }
    Ok(())
}

#[test]
fn every_bug_is_found() {
    let mut missed = Vec::new();
    for bug in BUGS {
        for seed in 0..8 {
            let mut gpu = Gpu::load(&format!("bugs/{}.ptx", bug.name));
            gpu.options.seed = seed;
            match run(&mut gpu, bug.kernel) {
                // This fault is found when the block has ended, so it has no line.
                Err(fault)
                    if fault.kind == FaultKind::GlobalRace && bug.found.contains(&fault.kind) =>
                {
                    assert!(fault.block.is_some(), "{fault}");
                }
                Err(fault) if bug.found.contains(&fault.kind) => {
                    let source = fault.source.as_ref().map(|(file, _)| file.clone());
                    assert_eq!(source, Some(format!("{}.cu", bug.kernel)), "{fault}");
                    assert!(fault.ptx.is_some() && fault.thread.is_some(), "{fault}");
                }
                other => missed.push(format!("{} under seed {seed}: {other:?}", bug.name)),
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn the_kernels_without_bugs_have_no_fault() {
    for kernel in [
        "softmax",
        "matmul_smem",
        "mma_bf16",
        "wgmma",
        "warpgroups",
        "clusters",
        "stores",
        "units",
        "misc",
        "ew",
    ] {
        for seed in 0..8 {
            let mut gpu = Gpu::load(&format!("kernels/{kernel}.ptx"));
            gpu.options.seed = seed;
            run(&mut gpu, kernel).unwrap_or_else(|fault| panic!("{kernel}: {fault}"));
        }
    }
}
