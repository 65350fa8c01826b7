// Marks a skipped step: its record says that an error happened, with a state that is not a site's, so its kernels,
// guarded by the record, do nothing.
extern "C" __global__ void kiln_guard(const unsigned char* guard, kiln_errors* record, long long bytes, kiln_errors* errors, int guarded) {
    bool set = guarded && errors->state;
    for (long long i = 0; i < bytes && !set; i++) set = guard[i] != 0;
    record->state = set ? 0xffffffffu : 0u;
}
