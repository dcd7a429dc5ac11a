#include "cli/manual/manual.h"

#include <errno.h>
#include <string.h>

#include "base/status.h"
#include "train/checkpoint/checkpoint.h"

/* Opens FOLDER/NAME. The caller closes it with finish. */
static FILE *start(const char *folder, const char *name, char path[PATH_MAX]) {
    if (ls_path_join(path, folder, name) != LS_OK) {
        return NULL;
    }
    FILE *stream = fopen(path, "w");
    if (stream == NULL) {
        (void)ls_fail(LS_ERR_IO, "lockstep_manual: %s: %s", path, strerror(errno));
    }
    return stream;
}

static ls_status finish(FILE *stream, const char *path) {
    const bool failed = ferror(stream) != 0;
    return fclose(stream) == 0 && !failed
               ? LS_OK
               : ls_fail(LS_ERR_IO, "lockstep_manual: cannot write %s: is the disk full?", path);
}

static ls_status write_page(const char *folder, const ls_command *command, const char *date) {
    char name[64], path[PATH_MAX];
    snprintf(name, sizeof name, "lockstep%s%s.1", command != NULL ? "-" : "", command != NULL ? command->name : "");
    FILE *stream = start(folder, name, path);
    if (stream == NULL) {
        return ls_error_status();
    }
    ls_manual_page(stream, command, date);
    return finish(stream, path);
}

static ls_status write_pages(const char *folder, const char *date) {
    LS_TRY(write_page(folder, NULL, date));
    for (const ls_command *const *command = ls_commands; *command != NULL; command++) {
        LS_TRY(write_page(folder, *command, date));
    }
    return LS_OK;
}

static ls_status write_completion(const char *folder) {
    static const struct {
        const char *name;
        void (*print)(FILE *stream);
    } shells[] = {{"lockstep", ls_manual_bash}, {"_lockstep", ls_manual_zsh}, {"lockstep.fish", ls_manual_fish}};
    for (size_t i = 0; i < sizeof shells / sizeof shells[0]; i++) {
        char path[PATH_MAX];
        FILE *stream = start(folder, shells[i].name, path);
        if (stream == NULL) {
            return ls_error_status();
        }
        shells[i].print(stream);
        LS_TRY(finish(stream, path));
    }
    return LS_OK;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: lockstep_manual FOLDER DATE\n");
        return LS_EXIT_USAGE;
    }
    if (write_pages(argv[1], argv[2]) != LS_OK || write_completion(argv[1]) != LS_OK) {
        fprintf(stderr, "%s\n", ls_error_message());
        return LS_EXIT_FAILED;
    }
    return 0;
}
