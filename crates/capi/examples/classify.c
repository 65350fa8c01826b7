/* Runs the entry `forward` of a package on images, reads a weight, and trains nothing:
 *
 *     classify MODEL.kiln IMAGES CHANCES
 *
 * IMAGES holds f32 numbers, as many images [1, 6, 6] as there are; CHANCES gets f32 numbers [n, 5]. */
#include "kiln.h"

#include <stdio.h>
#include <stdlib.h>

enum { IMAGE = 36, CLASSES = 5 };

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, kiln_last_error());
    return 1;
}

static float *read_floats(const char *path, size_t *count)
{
    FILE *file = fopen(path, "rb");
    float *values = NULL;
    long bytes;
    if (file == NULL)
        return NULL;
    if (fseek(file, 0, SEEK_END) == 0 && (bytes = ftell(file)) > 0 && fseek(file, 0, SEEK_SET) == 0) {
        *count = (size_t)bytes / sizeof(float);
        values = malloc((size_t)bytes);
        if (values != NULL && fread(values, sizeof(float), *count, file) != *count) {
            free(values);
            values = NULL;
        }
    }
    fclose(file);
    return values;
}

int main(int argc, char **argv)
{
    KilnPackage *package = NULL;
    KilnEntry *forward = NULL;
    KilnTensor *weight = NULL, *out = NULL;
    KilnView view, images, chances;
    int64_t image_shape[4] = {0, 1, 6, 6}, chance_shape[2] = {0, CLASSES};
    size_t count = 0, bytes = 0;
    float *given, *found;
    FILE *file;

    if (argc != 4) {
        fprintf(stderr, "usage: classify MODEL.kiln IMAGES CHANCES\n");
        return 2;
    }
    if (kiln_open(argv[1], 0, &package) != KILN_OK)
        return failed("open");
    if (kiln_entry(package, "forward", &forward) != KILN_OK)
        return failed("entry");
    /* The package is not needed any more once its entries are there; its state is. */
    if (kiln_state_get(package, "conv.weight", &weight) != KILN_OK || kiln_tensor_view(weight, &view) != KILN_OK)
        return failed("conv.weight");
    printf("conv.weight has %u dims and %zu bytes\n", view.rank, view.bytes);
    kiln_tensor_free(weight);

    given = read_floats(argv[2], &count);
    if (given == NULL)
        return fprintf(stderr, "%s can't be read\n", argv[2]), 1;
    image_shape[0] = chance_shape[0] = (int64_t)(count / IMAGE);
    if (kiln_entry_memory(forward, image_shape, 1, &bytes) != KILN_OK)
        return failed("memory");
    printf("a run takes %zu bytes beside the weights\n", bytes);

    images.data = given;
    images.bytes = count * sizeof(float);
    images.dtype = KILN_F32;
    images.rank = 4;
    images.shape = image_shape;
    chances.bytes = (size_t)chance_shape[0] * CLASSES * sizeof(float);
    found = malloc(chances.bytes);
    chances.data = found;
    chances.dtype = KILN_F32;
    chances.rank = 2;
    chances.shape = chance_shape;
    if (kiln_run_into(forward, &images, 1, &chances, 1) != KILN_OK)
        return failed("run");
    /* The same with memory of the library's. */
    if (kiln_run(forward, &images, 1, &out, 1) != KILN_OK || kiln_tensor_view(out, &view) != KILN_OK)
        return failed("run");
    if (view.bytes != chances.bytes)
        return fprintf(stderr, "two runs differ\n"), 1;
    kiln_tensor_free(out);
    /* What is wrong has a code and a text. */
    image_shape[1] = 6;
    image_shape[2] = 1;
    if (kiln_run_into(forward, &images, 1, &chances, 1) == KILN_OK)
        return fprintf(stderr, "images of another shape are not refused\n"), 1;
    printf("expected: %s\n", kiln_last_error());

    file = fopen(argv[3], "wb");
    if (file == NULL || fwrite(found, 1, chances.bytes, file) != chances.bytes || fclose(file) != 0)
        return fprintf(stderr, "%s can't be written\n", argv[3]), 1;
    free(given);
    free(found);
    kiln_entry_free(forward);
    kiln_package_free(package);
    return 0;
}
