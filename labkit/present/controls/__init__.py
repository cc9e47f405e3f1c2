"""Panels for JupyterLab: knobs, live lanes, buttons. Nothing here runs headless."""
