/* Writes an event file with every kind of content into the given folder, for tensorboard.sh. */
#include <lockstep/formats.h>

#include <stdio.h>

static ls_status write_tensors(ls_events *events, const ls_tensor *histogram, const ls_tensor *picture) {
    const ls_status status = ls_events_histogram(events, "weights", 3, histogram);
    return status == LS_OK ? ls_events_image(events, "picture", 4, picture) : status;
}

static ls_status write_all(ls_events *events) {
    static const double numbers[] = {-3, -0.5, -0.5, 0, 0x1p-10, 0.25, 1, 1, 1000, 0x1p10};
    const ls_events_node nodes[] = {{"input", "Input", NULL},
                                    {"a/product", "Linear", (const char *const[]){"input", NULL}}};
    ls_tensor *histogram = ls_from(LS_SHAPE(10), LS_F64, numbers);
    ls_tensor *picture = ls_arange(LS_SHAPE(3, 2, 4), LS_U8);
    ls_status status = LS_OK;
    for (int step = 1; status == LS_OK && step <= 3000; step++) { /* more than one write can hold */
        status = ls_events_scalar(events, "loss/train", step, 1.0 / step);
    }
    if (status == LS_OK) {
        status = write_tensors(events, histogram, picture);
    }
    if (status == LS_OK) {
        status = ls_events_text(events, "note", 5, "some *text*, \xc3\xa4");
    }
    if (status == LS_OK) {
        status = ls_events_graph(events, nodes, 2);
    }
    ls_release(histogram);
    ls_release(picture);
    return status;
}

int main(int count, char **arguments) {
    ls_events *events = count == 2 ? ls_events_open(arguments[1], NULL) : NULL;
    ls_status status = events != NULL ? write_all(events) : ls_error_status();
    if (status == LS_OK) {
        status = ls_events_close(events);
    }
    if (events == NULL || status != LS_OK) {
        fprintf(stderr, "%s\n", ls_error_message());
        return 1;
    }
    return 0;
}
