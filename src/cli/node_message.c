#include "cli/node_message.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

typedef struct word_rule {
    const char *name;
    int numbers;
    bool text;
} word_rule;

static const word_rule rules[LS_NODE_WORDS] = {
    [LS_NODE_JOIN] = {"join", 3, true},      [LS_NODE_REFUSED] = {"refused", 0, true},
    [LS_NODE_NEWS] = {"news", 0, true},      [LS_NODE_START] = {"start", 3, true},
    [LS_NODE_FAILED] = {"failed", 4, true},  [LS_NODE_END] = {"end", 3, true},
    [LS_NODE_SIGNAL] = {"signal", 2, false}, [LS_NODE_DONE] = {"done", 0, false},
    [LS_NODE_OVER] = {"over", 1, false},     [LS_NODE_ASK] = {"ask", 0, false},
    [LS_NODE_HERE] = {"here", 0, false},
};

size_t ls_node_message_write(const ls_node_message *message, uint8_t *frame) {
    const word_rule *rule = &rules[message->word];
    char value[LS_NODE_NUMBERS * 12 + LS_NODE_TEXT];
    size_t size = 0;
    for (int i = 0; i < rule->numbers; i++) {
        size += (size_t)snprintf(value + size, sizeof value - size, "%d ", message->numbers[i]);
    }
    if (rule->text) {
        size += (size_t)snprintf(value + size, sizeof value - size, "%s", message->text);
    }
    const ls_store_request request = {
        .operation = LS_STORE_SET, .key = {rule->name, strlen(rule->name)}, .value = {value, size}};
    _Static_assert(LS_FRAME_HEADER + LS_REQUEST_FIXED + 16 + sizeof value <= LS_NODE_FRAME, "a frame has room");
    ls_request_encode(&request, frame);
    return ls_request_size(&request);
}

static bool find_word(ls_bytes name, ls_node_word *word) {
    for (int i = 0; i < LS_NODE_WORDS; i++) {
        if (strlen(rules[i].name) == name.size && memcmp(rules[i].name, name.data, name.size) == 0) {
            *word = (ls_node_word)i;
            return true;
        }
    }
    return false;
}

/* Reads "NUMBER ", in the form in which snprintf writes it. */
static bool read_number(char **at, int *number) {
    char *end;
    errno = 0;
    const long value = strtol(*at, &end, 10);
    if (end == *at || *end != ' ' || errno != 0 || value < INT_MIN || value > INT_MAX ||
        !((**at >= '0' && **at <= '9') || **at == '-')) {
        return false;
    }
    *number = (int)value;
    *at = end + 1;
    return true;
}

ls_status ls_node_message_read(const uint8_t *body, size_t size, ls_node_message *message) {
    ls_store_request request;
    char value[LS_NODE_NUMBERS * 12 + LS_NODE_TEXT];
    LS_TRY(ls_request_decode(body, size, &request));
    *message = (ls_node_message){0};
    if (request.operation != LS_STORE_SET || request.value.size >= sizeof value ||
        !find_word(request.key, &message->word)) {
        return ls_fail(LS_ERR_FORMAT,
                       "a launcher sent a message that this one does not know: is it a different version of Lockstep?");
    }
    memcpy(value, request.value.data, request.value.size);
    value[request.value.size] = '\0';
    const word_rule *rule = &rules[message->word];
    char *at = value;
    for (int i = 0; i < rule->numbers; i++) {
        if (!read_number(&at, &message->numbers[i])) {
            return ls_fail(LS_ERR_FORMAT, "a launcher's message \"%s\" lacks a number", rule->name);
        }
    }
    const size_t text = request.value.size - (size_t)(at - value);
    if (text >= LS_NODE_TEXT || (text > 0 && !rule->text) || strlen(at) != text) {
        return ls_fail(LS_ERR_FORMAT, "a launcher's message \"%s\" contains a string that is too long or unexpected",
                       rule->name);
    }
    memcpy(message->text, at, text);
    ls_text_make_printable(message->text);
    return LS_OK;
}
