/* The subcommands of `lockstep`. To add a subcommand, add an element to the list. */
#include "cli/cli.h"

const ls_command *const ls_commands[] = {&ls_run_command,    &ls_checkpoint_command, &ls_bench_command,
                                         &ls_doctor_command, &ls_report_command,     NULL};
