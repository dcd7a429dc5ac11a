/* Reads the environment variables, and sets the URL of a job's store. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/rendezvous.h"

const char *ls_environment_text(const char *name) {
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0' ? text : NULL;
}

ls_status ls_environment_number(const char *name, long low, long high, int *number) {
    const char *text = ls_environment_text(name);
    if (text == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s is not set in the environment", name);
    }
    char *end;
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (end == text || *end != '\0') {
        return ls_fail(LS_ERR_ARGUMENT, "%s=%s is not a whole number", name, text);
    }
    if (errno != 0 || value < low || value > high) {
        return ls_fail(LS_ERR_ARGUMENT, "%s=%s must be from %ld to %ld", name, text, low, high);
    }
    *number = (int)value;
    return LS_OK;
}

void ls_job_set_place(ls_job *job, const char *host, int port) {
    const bool bare = strchr(host, ':') != NULL && host[0] != '[';
    snprintf(job->url, sizeof job->url, bare ? "tcp://[%s]:%d" : "tcp://%s:%d", host, port);
}
