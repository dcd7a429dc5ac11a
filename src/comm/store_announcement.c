#include "comm/store_announcement.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sodium.h>

#include "base/log.h"
#include "comm/store_folder.h"

/* "lockstep-store 1 NONCE KEYED PROOF\n" */
static const char head[] = "lockstep-store 1 ";

static const char folder_head[] = "job-";
static const char refusal[] = "refused";

#define REFUSAL_SECONDS 1.0 /* to wait for others that write there */

enum {
    HEAD = sizeof head - 1,
    FOLDER_HEAD = sizeof folder_head - 1,
    NONCE_TEXT = 2 * LS_NONCE_SIZE,
    PROOF_TEXT = 2 * LS_PROOF_SIZE,
    REFUSAL_SIZE = 320
};

_Static_assert(HEAD + NONCE_TEXT + 3 + PROOF_TEXT + 1 == LS_ANNOUNCEMENT_SIZE, "the parts of the text");

ls_status ls_announcement_make(ls_announcement *announcement, const ls_key *key) {
    LS_TRY(ls_auth_nonce(announcement->nonce));
    announcement->keyed = key->given;
    ls_auth_prove(key, "folder", announcement->nonce, announcement->nonce, announcement->proof);
    return LS_OK;
}

void ls_announcement_write(const ls_announcement *announcement, char text[LS_ANNOUNCEMENT_SIZE + 1]) {
    char nonce[NONCE_TEXT + 1], proof[PROOF_TEXT + 1];
    sodium_bin2hex(nonce, sizeof nonce, announcement->nonce, LS_NONCE_SIZE);
    sodium_bin2hex(proof, sizeof proof, announcement->proof, LS_PROOF_SIZE);
    snprintf(text, LS_ANNOUNCEMENT_SIZE + 1, "%s%s %d %s\n", head, nonce, announcement->keyed, proof);
}

static bool read_hex(const char *text, uint8_t *bytes, size_t size) {
    size_t read;
    return sodium_hex2bin(bytes, size, text, 2 * size, NULL, &read, NULL) == 0 && read == size;
}

ls_status ls_announcement_read(const char *text, size_t size, ls_announcement *announcement) {
    const char *rest = text + HEAD + NONCE_TEXT;
    if (size != LS_ANNOUNCEMENT_SIZE || memcmp(text, head, HEAD) != 0 ||
        !read_hex(text + HEAD, announcement->nonce, LS_NONCE_SIZE) || rest[0] != ' ' ||
        (rest[1] != '0' && rest[1] != '1') || rest[2] != ' ' ||
        !read_hex(rest + 3, announcement->proof, LS_PROOF_SIZE) || rest[3 + PROOF_TEXT] != '\n') {
        return ls_fail(LS_ERR_FORMAT, "the folder's file \"current\" was not written by Lockstep");
    }
    announcement->keyed = rest[1] == '1';
    return LS_OK;
}

ls_status ls_announcement_check(const ls_announcement *announcement, const ls_key *key) {
    if (ls_auth_check(key, "folder", announcement->nonce, announcement->nonce, announcement->proof)) {
        return LS_OK;
    }
    return ls_fail(LS_ERR_DENIED, "%s",
                   !key->given            ? "the job has a key, but this process was given none (LOCKSTEP_KEY)"
                   : !announcement->keyed ? "the job has no key, but this process was given one (LOCKSTEP_KEY)"
                                          : "this process has another key than the job (LOCKSTEP_KEY)");
}

void ls_announcement_note_refusal(int folder) {
    const ls_status status = ls_error_status();
    char message[LS_ERROR_CAPACITY], text[REFUSAL_SIZE], host[64] = "an unnamed host";
    int lock;
    snprintf(message, sizeof message, "%s", ls_error_message());
    (void)gethostname(host, sizeof host - 1);
    const int length = snprintf(text, sizeof text, "process %ld on %s: %.200s", (long)getpid(), host, message);
    if (ls_folder_lock(folder, "lock", ls_deadline_after(REFUSAL_SECONDS), &lock) == LS_OK) {
        if (!ls_folder_has(folder, refusal)) {
            (void)ls_folder_write(folder, refusal, (ls_bytes){text, (size_t)length}, NULL);
        }
        close(lock);
    }
    ls_error_restore(status, message);
}

int ls_announcement_report_refusals(int folder) {
    char text[REFUSAL_SIZE];
    size_t size = 0;
    int count = 0;
    for (; ls_folder_has(folder, refusal); count++) {
        if (ls_folder_read(folder, refusal, text, sizeof text, &size) != LS_OK || unlinkat(folder, refusal, 0) != 0) {
            break;
        }
        ls_log_write(LS_LOG_WARNING, "refused %.*s", (int)size, text);
    }
    return count;
}

void ls_announcement_folder(const ls_announcement *announcement, char name[LS_JOB_FOLDER_SIZE]) {
    memcpy(name, folder_head, FOLDER_HEAD);
    sodium_bin2hex(name + FOLDER_HEAD, LS_JOB_FOLDER_SIZE - FOLDER_HEAD, announcement->nonce, LS_NONCE_SIZE);
}

bool ls_announcement_names_folder(const char *name) {
    return strncmp(name, folder_head, FOLDER_HEAD) == 0 && strlen(name) == LS_JOB_FOLDER_SIZE - 1 &&
           strspn(name + FOLDER_HEAD, "0123456789abcdef") == NONCE_TEXT;
}
