/*
 * The balanced binary tree over n items in which Lockstep adds numbers. The left subtree of a node of n items has the
 * largest power of two below n. A sum then depends only on the items and n, and not on which rank or thread computes
 * which node.
 */
#ifndef LS_BASE_TREE_H
#define LS_BASE_TREE_H

/* Returns the number of items in the left subtree of a node of n items; n is at least 2. */
static inline int ls_tree_left(int n) {
    int left = 1;
    while (left < n - left) {
        left *= 2;
    }
    return left;
}

/* A node: `count` items, beginning with item `first`. */
typedef struct ls_tree_node {
    int first;
    int count;
} ls_tree_node;

/* The maximum number of nodes that ls_tree_cover returns, for at most 4,096 items. */
#define LS_TREE_COVER 24

/*
 * Lists the largest nodes within `node` that contain only items in [begin, end), from left to right, after the first
 * `used` nodes of the list. Returns the number of nodes in the list.
 */
static inline int ls_tree_cover(ls_tree_node node, int begin, int end, ls_tree_node *list, int used) {
    if (node.first >= end || node.first + node.count <= begin) {
        return used;
    }
    if (node.first >= begin && node.first + node.count <= end) {
        list[used] = node;
        return used + 1;
    }
    const int left = ls_tree_left(node.count);
    used = ls_tree_cover((ls_tree_node){node.first, left}, begin, end, list, used);
    return ls_tree_cover((ls_tree_node){node.first + left, node.count - left}, begin, end, list, used);
}

#endif
