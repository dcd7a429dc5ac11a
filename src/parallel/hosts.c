#include "parallel/hosts.h"

#include "base/processor.h"
#include "base/status.h"
#include "comm/same_text.h"
#include "tensor/device/cpu/libraries.h"

ls_status ls_hosts_check_alike(ls_comm *comm, const char *name) {
    char processor[LS_PROCESSOR_CAPACITY];
    ls_processor_describe(processor);
    LS_TRY(ls_comm_check_same_text(comm, name, "processor", processor));
    return ls_comm_check_same_text(comm, name, "libraries", ls_cpu_libraries_describe());
}
