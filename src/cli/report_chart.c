/*
 * Draws curves as SVG. The drawing is stretched to the width of the page; its labels are HTML, so that they keep their
 * size on narrow screens.
 */
#include <math.h>
#include <string.h>

#include "base/locale.h"
#include "cli/report.h"

enum { WIDTH = 1000, HEIGHT = 300, MOST_TICKS = 6 };

void ls_page_put(FILE *page, const char *text) {
    static const char special[] = "&<>\"'";
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    for (; *text != '\0'; text++) {
        const char *found = strchr(special, *text);
        found != NULL ? fputs(names[found - special], page) : fputc(*text, page);
    }
}

/* The range of an axis. */
typedef struct axis {
    double from, to;
    bool logarithmic; /* from and to are base-10 logarithms */
    double ticks[MOST_TICKS + 2];
    int count;
} axis;

static double scale(const axis *a, double value) {
    return ((a->logarithmic ? log10(value) : value) - a->from) / (a->to - a->from);
}

/* Returns whether a point can be drawn. Also false for NAN. */
static bool is_point(const ls_curve *curve, size_t i) {
    return fabs(curve->x[i]) < 1e15 && fabs(curve->y[i]) < 1e300; /* larger ranges would not be finite */
}

static void put_number(FILE *page, double value) {
    const double size = fabs(value);
    ls_fprintf(page,
               size >= 1e15  ? "%.6g"
               : size >= 1e6 ? "%.4gM"
               : size >= 1e4 ? "%.4gk"
                             : "%.4g",
               value * (size >= 1e15  ? 1
                        : size >= 1e6 ? 1e-6
                        : size >= 1e4 ? 1e-3
                                      : 1));
}

/* ---- axes -------------------------------------------------------------------------------------------------------- */

static void widen(axis *a, double value) {
    a->from = value < a->from ? value : a->from;
    a->to = value > a->to ? value : a->to;
}

/* Finds the ranges. Returns false if there are no points. */
static bool find_ranges(const ls_chart *chart, axis *x, axis *y) {
    *x = *y = (axis){.from = INFINITY, .to = -INFINITY};
    for (int c = 0; c < chart->count; c++) {
        const ls_curve *curve = &chart->curves[c].curve;
        for (size_t i = 0; i < curve->count; i++) {
            if (is_point(curve, i)) {
                widen(x, curve->x[i]);
                widen(y, curve->y[i]);
            }
        }
    }
    return x->from <= x->to;
}

/* Chooses ticks at multiples of 1, 2 or 5 times a power of 10. */
static void choose_ticks(axis *a, double least_step) {
    const double rough = (a->to - a->from) / (MOST_TICKS - 1), power = pow(10, floor(log10(rough)));
    const double ratio = rough / power;
    const double nice = (ratio > 5 ? 10 : ratio > 2 ? 5 : ratio > 1 ? 2 : 1) * power;
    const double step = nice > least_step ? nice : least_step;
    for (double i = ceil(a->from / step - 1e-9); i * step <= a->to + 1e-9 * step && a->count < MOST_TICKS; i++) {
        a->ticks[a->count++] = a->logarithmic ? pow(10, i * step) : i * step + 0.0; /* not -0 */
    }
}

static void set_x(axis *x) {
    if (x->from == x->to) {
        x->from -= 1;
        x->to += 1;
    }
    choose_ticks(x, 1);
}

static void set_y(axis *y) {
    y->logarithmic = y->from > 0 && y->to / y->from > 100;
    if (y->logarithmic) {
        y->from = log10(y->from);
        y->to = log10(y->to);
    }
    const double range = y->to - y->from;
    const double margin = range > 1e-12 * fabs(y->to) ? 0.05 * range : fabs(y->to) > 1e-300 ? 0.1 * fabs(y->to) : 1;
    y->from -= margin;
    y->to += margin;
    choose_ticks(y, y->logarithmic ? 1 : 0);
}

/* ---- the drawing ------------------------------------------------------------------------------------------------- */

static void put_grid(FILE *page, const axis *y) {
    fputs("<path class=\"grid\" d=\"", page);
    for (int i = 0; i < y->count; i++) {
        ls_fprintf(page, "M0 %.1fH%d", HEIGHT * (1 - scale(y, y->ticks[i])), WIDTH);
    }
    fputs("\"/>", page);
}

/* A curve with few points gets dots, which are lines of length 0 with round ends. */
static void put_curve(FILE *page, const ls_chart_curve *shown, const axis *x, const axis *y) {
    const ls_curve *curve = &shown->curve;
    for (int dots = curve->count <= 40; dots >= 0; dots--) {
        bool begun = false;
        fprintf(page, "<path class=\"c%d%s\" d=\"", shown->color, dots ? " dot" : shown->dashed ? " dash" : "");
        for (size_t i = 0; i < curve->count; i++) {
            const bool drawn = is_point(curve, i);
            if (drawn) {
                ls_fprintf(page, "%c%.1f %.1f%s", begun && !dots ? 'L' : 'M', WIDTH * scale(x, curve->x[i]),
                           HEIGHT * (1 - scale(y, curve->y[i])), dots ? "h0" : "");
            }
            begun = drawn;
        }
        fputs("\"/>", page);
    }
}

static void put_labels(FILE *page, const axis *a, const char *name, const char *edge) {
    fprintf(page, "<div class=\"%s\">", name);
    for (int i = 0; i < a->count; i++) {
        ls_fprintf(page, "<span style=\"%s:%.2f%%\">", edge, 100 * scale(a, a->ticks[i]));
        put_number(page, a->ticks[i]);
        fputs("</span>", page);
    }
    fputs("</div>", page);
}

static void put_legend(FILE *page, const ls_chart *chart) {
    fputs("<ul class=\"legend\">", page);
    for (int c = 0; c < chart->count; c++) {
        const ls_chart_curve *shown = &chart->curves[c];
        fprintf(page,
                "<li><svg class=\"key\" viewBox=\"0 0 24 8\" aria-hidden=\"true\"><path class=\"c%d%s\" d=\"M1 "
                "4H23\"/></svg>",
                shown->color, shown->dashed ? " dash" : "");
        ls_page_put(page, shown->label);
        if (shown->curve.count > 0 && isfinite(shown->curve.y[shown->curve.count - 1])) {
            fputs(" <b>", page);
            put_number(page, shown->curve.y[shown->curve.count - 1]);
            fputs("</b>", page);
        }
        fputs("</li>", page);
    }
    fputs("</ul>\n", page);
}

static void draw(FILE *page, const ls_chart *chart, axis *x, axis *y) {
    set_x(x);
    set_y(y);
    fputs("<figure><figcaption>", page);
    ls_page_put(page, chart->title);
    fprintf(page, "<small>by %s%s</small></figcaption>\n", chart->axis, y->logarithmic ? ", logarithmic" : "");
    put_legend(page, chart);
    fputs("<div class=\"plot\">", page);
    put_labels(page, y, "y", "bottom");
    fprintf(page, "<svg viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"", WIDTH, HEIGHT);
    ls_page_put(page, chart->title);
    fputs("\">", page);
    put_grid(page, y);
    for (int c = 0; c < chart->count; c++) {
        put_curve(page, &chart->curves[c], x, y);
    }
    fputs("</svg>", page);
    put_labels(page, x, "x", "left");
    fputs("</div></figure>\n", page);
}

void ls_chart_write(FILE *page, ls_chart *chart) {
    axis x, y;
    for (int c = 0; c < chart->count; c++) {
        ls_curve_reduce(&chart->curves[c].curve, LS_CHART_POINTS);
    }
    if (find_ranges(chart, &x, &y)) {
        draw(page, chart, &x, &y);
    }
    for (int c = 0; c < chart->count; c++) {
        ls_curve_free(&chart->curves[c].curve);
    }
    chart->count = 0;
}
