#include "autograd/loss_divisor.h"

#include "tensor/device.h"

ls_status ls_loss_divisor_note(const char *call, ls_tensor *divisor) {
    ls_loss_divisor *noted = ls_thread()->divisor;
    if (noted == NULL) {
        return LS_OK;
    }
    if (noted->least == NULL) {
        noted->least = ls_tensor_hold(divisor);
        return LS_OK;
    }
    if (noted->least->dtype != divisor->dtype || ls_tensor_device(noted->least) != ls_tensor_device(divisor)) {
        return LS_OK;
    }
    ls_tensor *least = ls_tensor_like_owned(call, divisor, (ls_dtype)divisor->dtype);
    if (least == NULL) {
        return ls_error_status();
    }
    const ls_tensor *operands[] = {noted->least, divisor};
    const ls_status status = ls_kernels_of(least)->minimum(ls_stream_of(least), least, operands, NULL);
    ls_tensor_drop(noted->least);
    noted->least = least;
    return status;
}

void ls_loss_divisor_note_sum(void) {
    ls_loss_divisor *noted = ls_thread()->divisor;
    if (noted != NULL) {
        noted->is_sum = true;
    }
}
