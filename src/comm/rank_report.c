#include "comm/rank_report.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* The program may close the descriptor, whose number may then be reused for a different file: the socket's inode
 * reveals this. */
static struct {
    pthread_mutex_t lock;
    int socket; /* -1 if there is none, or if a failure has been reported */
    uintmax_t inode;
    pid_t process;
    int rank;
    int failed_rank;                 /* the failed rank of `message`; -1 if unknown */
    char message[LS_ERROR_CAPACITY]; /* the error of another rank; empty if there is none */
} told = {.lock = PTHREAD_MUTEX_INITIALIZER, .socket = -1, .failed_rank = -1};

static bool is_socket(int fd, uintmax_t inode) {
    struct stat about;
    return fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode) && about.st_ino == inode;
}

void ls_rank_report_open(int rank) {
    const char *text = getenv("LOCKSTEP_REPORT");
    int fd;
    uintmax_t inode;
    if (text != NULL && sscanf(text, "%9d:%19ju", &fd, &inode) == 2 && is_socket(fd, inode) &&
        fcntl(fd, F_SETFD, FD_CLOEXEC) == 0) {
        pthread_mutex_lock(&told.lock);
        told.socket = fd;
        told.inode = inode;
        told.process = getpid();
        told.rank = rank;
        pthread_mutex_unlock(&told.lock);
    }
}

void ls_rank_report_set_failed_rank(int failed_rank) {
    pthread_mutex_lock(&told.lock);
    told.failed_rank = failed_rank;
    snprintf(told.message, sizeof told.message, "%s", ls_error_message());
    pthread_mutex_unlock(&told.lock);
}

void ls_rank_report_tell(ls_status status, int failed_rank) {
    pthread_mutex_lock(&told.lock);
    if (failed_rank < 0 && told.message[0] != '\0' && strcmp(told.message, ls_error_message()) == 0) {
        status = LS_ERR_PEER;
        failed_rank = told.failed_rank;
    }
    if (told.socket >= 0 && told.process == getpid() && is_socket(told.socket, told.inode)) {
        char text[LS_REPORT_TEXT];
        snprintf(text, sizeof text, "lockstep-failure 1 %d %d %d %d %s", (int)status, told.rank, failed_rank,
                 (int)getpid(), ls_error_message());
        (void)send(told.socket, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    told.socket = -1;
    pthread_mutex_unlock(&told.lock);
}

bool ls_rank_report_read(const char *text, ls_rank_report *report) {
    int status, at = 0;
    if (sscanf(text, "lockstep-failure 1 %9d %9d %9d %9d %n", &status, &report->rank, &report->failed_rank,
               &report->process, &at) != 4 ||
        at == 0 || text[at] == '\0' || status <= LS_OK || status > LS_ERR_DEVICE) {
        return false;
    }
    report->status = (ls_status)status;
    snprintf(report->sentence, sizeof report->sentence, "%s", text + at);
    return true;
}
