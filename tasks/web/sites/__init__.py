"""Generated tasks on three small sites: initial state, goal, solution and near misses made together.

    build.py    from a kind of task to a Task
    shop.py     a shop with an office behind it
    forum.py    boards, threads and posts
    desk.py     rooms to book and tickets to work on

The sites themselves are applications in `envs/web/apps`.
"""
