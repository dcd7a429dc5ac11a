/*
 * `lockstep report`: creates a page about a run from the record that ls_run_log writes.
 *
 *   report.c        the command              report_record.c  reads a record
 *   report_page.c   writes the page          report_chart.c   draws curves
 *   report_style.c  style sheet of the page
 */
#ifndef LS_CLI_REPORT_H
#define LS_CLI_REPORT_H

#include <sys/stat.h>

#include <jansson.h>
#include <stdio.h>

#include "base/status.h"

/* ---- records ----------------------------------------------------------------------------------------------------- */

/* Points in the order of x. A y value that is not finite is a gap. */
typedef struct ls_curve {
    double *x, *y;
    size_t count, room;
} ls_curve;

/* The content of a record. */
typedef struct ls_run_record {
    const char *path; /* as given on the command line; borrowed */
    struct stat file; /* of the file that was read */
    json_t *start;    /* the line "start" of the last start, but with the time of the first start */
    json_t *epochs;   /* the lines "epoch" */
    json_t *results;  /* last value of every metric since the last start, from the lines "results" and "end" */
    ls_curve loss;    /* over steps */
    ls_curve rate;    /* learning rate over steps */
    int resumes;      /* number of starts that resumed from a checkpoint */
    bool ended;       /* the last run of the trial has ended */
    bool incomplete;  /* the last line was incomplete and therefore skipped */
} ls_run_record;

/*
 * Reads a record: a file, or the file run.jsonl in a folder. An incomplete last line is not an error. Fails with
 * LS_ERR_IO if there is no such regular file, and with LS_ERR_FORMAT and the line number if a line is damaged.
 */
ls_status ls_run_record_read(const char *path, ls_run_record *record);
void ls_run_record_free(ls_run_record *record);
/* Returns a number of an object, or NAN if it is null or missing. */
double ls_record_number(const json_t *object, const char *key);

ls_status ls_curve_add(ls_curve *curve, double x, double y);
void ls_curve_free(ls_curve *curve);
/*
 * Reduces a curve to at most `most` points; `most` is at least 5. Divides the points into equal parts, and keeps the
 * first minimum, the first maximum and the first gap of each part. Also keeps the first and the last point.
 */
void ls_curve_reduce(ls_curve *curve, size_t most);

/* ---- pages ------------------------------------------------------------------------------------------------------- */

/* Maximum numbers of curves in a chart and of points in a curve. */
enum { LS_CHART_CURVES = 16, LS_CHART_POINTS = 2000 };

typedef struct ls_chart_curve {
    ls_curve curve;
    char label[200];
    int color;
    bool dashed;
} ls_chart_curve;

typedef struct ls_chart {
    const char *title;
    const char *axis; /* "step" or "epoch" */
    ls_chart_curve curves[LS_CHART_CURVES];
    int count;
} ls_chart;

/* Writes text without escaping it: the text must not contain special characters of HTML. */
void ls_page_put(FILE *page, const char *text);
/* Writes the chart, if it has points, and frees its curves. */
void ls_chart_write(FILE *page, ls_chart *chart);

/* Writes the page. Takes ownership of the curves of the records. Write errors are reported by the stream. */
ls_status ls_page_write(FILE *page, ls_run_record *runs, int count);
extern const char ls_page_style[];

#endif
