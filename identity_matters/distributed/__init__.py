"""Several devices or processes that train as one."""
