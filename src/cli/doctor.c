#include "cli/doctor.h"

#include <string.h>

#include "base/status.h"
#include "cli/cli.h"

typedef struct doctor_values {
    bool json;
    bool hashes;
} doctor_values;

static const ls_cli_option options[] = {
    {"json", 0, LS_OPTION_FLAG, NULL, offsetof(doctor_values, json), 0, 0, "one JSON object"},
    {"hashes", 0, LS_OPTION_FLAG, NULL, offsetof(doctor_values, hashes), 0, 0,
     "train small models, and print hashes of their bits, instead of the checks"},
};

/* The tables in the order of the output. */
static const ls_doctor_check *const tables[] = {ls_doctor_backends, ls_doctor_devices, ls_doctor_machine,
                                                ls_doctor_network, ls_doctor_software};

static void run_table(ls_doctor_report *report, const ls_doctor_check *table) {
    const char *group = "";
    for (const ls_doctor_check *check = table; check->name != NULL; check++) {
        if (strcmp(check->group, group) != 0) {
            group = check->group;
            ls_report_section(report, group);
        }
        check->run(report, check);
    }
}

static void run_checks(ls_doctor_report *report, bool hashes) {
    if (hashes) {
        run_table(report, ls_doctor_hashes);
        return;
    }
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        run_table(report, tables[i]);
    }
}

static ls_status run(int argc, char **argv, int *exit_status) {
    doctor_values values = {0};
    int rest = 0;
    bool help = false;
    LS_TRY(ls_options_parse(&ls_doctor_command, argc, argv, &values, &rest, &help));
    if (help) {
        ls_options_help(&ls_doctor_command);
        return LS_OK;
    }
    if (rest < argc) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep doctor: unexpected argument '%s' (usage: lockstep doctor %s)",
                       argv[rest], ls_doctor_command.usage);
    }
    ls_doctor_report report;
    LS_TRY(ls_report_begin(&report, values.json));
    run_checks(&report, values.hashes);
    bool problems = false;
    LS_TRY(ls_report_end(&report, &problems));
    *exit_status = problems ? LS_EXIT_FAILED : 0;
    return LS_OK;
}

const ls_command ls_doctor_command = {
    .name = "doctor",
    .summary = "report on this machine: backends, GPUs, cores, memory, network",
    .usage = "[--json] [--hashes]",
    .about =
        "Reports what this machine offers Lockstep and why something is missing. Two ranks of each backend\n"
        "compute and check an all-reduce (mpi: under the launcher of each installed MPI library). The command\n"
        "takes a few seconds and changes nothing.\n"
        "\n"
        "With --hashes, trains small models in this process instead, with .shards = 4, for about a second. Prints a "
        "hash\n"
        "of the parameters of each model, and what these bits depend on: the processor, and the versions and "
        "instruction\n"
        "sets of the libraries. Machines that print the same hashes train these models with the same bits. Other "
        "models\n"
        "may use kernels that these do not.\n",
    .notes =
        "keys of --json:\n"
        "  version      of Lockstep\n"
        "  backends     for self, shm, tcp, mpi, gloo, nccl: available, reason (why not, else null), self_test (pass,\n"
        "               fail, or null where there was none), version (of its libraries, or null)\n"
        "  devices      for cpu, cuda, and each GPU as cuda:0, ...: available, reason; of cuda also driver, runtime,\n"
        "               cublas, cudnn (versions, or null); of a GPU name, memory_bytes, free_bytes (or null),\n"
        "               capability, multiprocessors, bus\n"
        "  cores        model, online, usable (list of their numbers), physical, quota (cores' worth, or null),\n"
        "               virtual_machine\n"
        "  memory       total_bytes, available_bytes, group_limit_bytes, shm_bytes, shm_free_bytes\n"
        "  limits       locked_memory_bytes, open_files (both null: unlimited), ptrace_scope (null: none)\n"
        "  network      interfaces (for each: up, addresses), same_machine, other_machines (each: interface,\n"
        "               address; null: none), host (name, addresses, seconds)\n"
        "  libraries    for onednn, openblas, libpng, libjpeg, hdf5, netcdf: found, version, file, reason\n"
        "  environment  variables that matter here, by name; keys are not shown\n"
        "  notes        sentences: what may be worth changing\n"
        "  problems     sentences: what Lockstep needs and what is broken\n"
        "  ok           whether there are no problems\n"
        "\n"
        "keys of --json --hashes: version, notes, problems, ok, and\n"
        "  arithmetic   processor, libraries: what the bits depend on\n"
        "  hashes       for mlp, convolutions, attention, lstm_f64: the hash, 16 hexadecimal digits (null: no hash)\n"
        "\n"
        "exit status:\n"
        "  0    everything required works     1    there are problems     2    the command line is wrong\n",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .run = run,
};
