// Marks the skipped sides of a branch: their records say that an error happened, with a state that is not a site's, so
// their kernels, guarded by the record, do nothing.
extern "C" __global__ void kiln_branch(const unsigned char* condition, kiln_errors* sides, kiln_errors* errors, int guarded) {
    bool none = guarded && errors->state;
    sides[0].state = none || !*condition ? 0xffffffffu : 0u;
    sides[1].state = none || *condition ? 0xffffffffu : 0u;
}
